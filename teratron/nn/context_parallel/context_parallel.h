// Context parallelism: the ranks of a group hold different tokens of the same samples. Only attention sees
// tokens of other ranks; all other layers compute token by token.
//
//   communication  what moves                        attention of a rank
//   p2p            keys and values, block by block   its queries over one rank's keys after the other, merged
//                                                    by their log-sum-exp, while the next block arrives (Liu
//                                                    et al. 2023, "Ring Attention"; Megatron-LM's p2p)
//   all_gather     keys and values of all ranks      its queries over all keys (Llama 3, Grattafiori et al.
//                                                    2024)
//   a2a            queries, keys, values and         all queries and keys of a part of the heads (Jacobs et
//                  outputs, tokens against heads     al. 2023, "DeepSpeed Ulysses")
//
// All give the results of one rank. With dropout or ALiBi, whose scores depend on positions, p2p gathers keys
// and values as all_gather does.
#pragma once

#include <memory>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/attention/segments.h"

namespace teratron {

struct AttentionRequest;

enum class ContextParallelComm : uint8_t { p2p, all_gather, a2a };

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
  /// Of this rank's queries and all keys: the first chunks of documents and the keys that they may see; the
  /// other queries see no key. Then the second chunks.
  Segments first_over_all, second_over_all;
};

/// Of `samples` samples of `length` tokens. `bounds`: the first token b * length + s of each document, in
/// order; the first token of every sample is one.
std::shared_ptr<const ContextCut> make_context_cut(std::span<const int32_t> bounds, int64_t samples,
                                                   int64_t length, const Group& group, at::Device device);
/// The same where every sample is one document.
std::shared_ptr<const ContextCut> make_context_cut(int64_t samples, int64_t length, const Group& group,
                                                   at::Device device);

/// What attention needs to know of the other ranks. A group of one rank: nothing was cut.
struct ContextParallel {
  Group group;
  std::shared_ptr<const ContextCut> cut = nullptr;

  int64_t size() const { return group.size; }
};

/// x [S, B, ...] -> this rank's tokens [S / ranks, B, ...].
at::Tensor cut_tokens(const at::Tensor& x_SB, const ContextParallel& context);
/// This rank's tokens of x -> those of all ranks in order, [S, B, ...]. Differentiable (S -> V of
/// comm/collectives.h).
at::Tensor gather_tokens(const at::Tensor& x_SB, const ContextParallel& context);

/// attention() of this rank's queries over the keys of all ranks: the request has this rank's tokens,
/// with the whole samples' segments. Self-attention with a causal mask. Collective.
at::Tensor context_parallel_attention(const AttentionRequest& request, const ContextParallel& context,
                                      ContextParallelComm comm);

}  // namespace teratron
