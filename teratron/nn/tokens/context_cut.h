// How samples are cut over context-parallel ranks, which hold different tokens of the same samples
// (attention/context_parallel/context_parallel.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/tokens/segments.h"

namespace teratron {

/// Tokens of a rank, each s * B + b, that go to other ranks, and those that come.
struct TokenMove {
  at::Tensor sent_rows;                 // i64: sorted by the rank that they go to
  at::Tensor received_rows;             // i64: of each token after it, its place among those received
  std::vector<int64_t> sent, received;  // numbers of tokens, by rank; those received are sorted by it
};

/// How the tokens of a micro-batch [S, B] are cut over the ranks of a group: every document by itself
/// (zigzag.h). Tokens of a rank keep the order of the sample. Tensors are on the device.
struct ContextCut {
  /// Tokens of a rank, counted sample by sample: b * (S / ranks) + s. Segments as in segments.h.
  struct Part {
    at::Tensor first, second;        // i64: tokens in the first or second chunk of their document
    at::Tensor cu_first, cu_second;  // documents among these
    at::Tensor cu_seqlens;           // among all
    int64_t first_count = 0, second_count = 0;
  };
  std::vector<Part> parts;    // by rank
  bool whole_samples = true;  // every sample is one document
  int64_t longest = 0;        // tokens of a rank in one document, at most
  /// i64 [S / ranks, B]: index in its sample of each token of this rank.
  at::Tensor rows_SB;
  /// Where token s * B + b of all is among the tokens of all ranks, rank by rank, each s * B + b.
  at::Tensor order;
  at::Tensor inverse_order;
  /// Segments of this rank's queries and all keys: the first chunks of documents and the keys that they may
  /// see; the other queries see no key. Then the second chunks.
  Segments first_over_all, second_over_all;
  at::Tensor cu_documents;  // i32: documents among the tokens of all ranks, sample by sample
  /// See contiguous_parts.h.
  TokenMove to_contiguous, from_contiguous;
};

/// The cut of `samples` samples of `length` tokens. `bounds`: the first token b * length + s of each
/// document, in order; the first token of every sample is one.
std::shared_ptr<const ContextCut> make_context_cut(std::span<const int32_t> bounds, int64_t samples,
                                                   int64_t length, const Group& group, at::Device device);
/// The cut where every sample is one document.
std::shared_ptr<const ContextCut> make_context_cut(int64_t samples, int64_t length, const Group& group,
                                                   at::Device device);

/// What attention needs to know of the other ranks. A group of one rank: nothing was cut.
struct ContextParallel {
  Group group;
  std::shared_ptr<const ContextCut> cut = nullptr;

  int64_t size() const { return group.size; }
};

/// Bounds of segments of whole samples [S, B], in a cut where every sample is one document -> bounds of their
/// tokens on a rank, of S / ranks per sample.
at::Tensor bounds_on_rank(const at::Tensor& cu_seqlens, int64_t length, const Group& group, int64_t rank);
/// x [S, B, ...] -> this rank's tokens [S / ranks, B, ...].
at::Tensor cut_tokens(const at::Tensor& x_SB, const ContextParallel& context);
/// This rank's tokens of x -> those of all ranks in order, [S, B, ...]. Differentiable (S -> V of
/// comm/collectives.h).
at::Tensor gather_tokens(const at::Tensor& x_SB, const ContextParallel& context);
/// x [S, B, ...] with its tokens in another order (indices s * B + b), and back in backward.
at::Tensor permute_tokens(const at::Tensor& x_SB, const at::Tensor& order, const at::Tensor& inverse);

}  // namespace teratron
