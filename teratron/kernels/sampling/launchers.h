// Launchers of choose_tokens.h. Raw device pointers.
#pragma once

#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

/// The tokens that top-k or top-p keep: those of higher order, and of equal order up to an id.
struct TokenCut {
  uint32_t order;  // token_cut_cuda.cu
  int last_id;
  // State of the search: tokens with a higher order, their mass and that of all, ties that are kept.
  int above;
  uint64_t mass_above, mass;
  int kept_ties;
};
/// Tokens of a row by a part of the bits of their order, and their mass.
struct TokenHistogram {
  static constexpr int passes = 3, buckets = 2048;
  uint64_t mass[passes][buckets];
  uint32_t count[passes][buckets];
};

struct ChooseTokensArgs {
  const void* logits;  // [rows, vocabulary]
  int64_t row_stride;  // elements
  int rows, vocabulary;
  Dtype dtype;
  const double* parameters;  // [rows, 5]
  bool samples;              // not all rows are greedy
  bool logprobs;
  double* partial;  // [rows, choose_tokens_parts, 4]
  double* out;      // [2, rows]
  // Null unless rows have top-k or top-p:
  TokenCut* cuts = nullptr;              // [rows]
  TokenHistogram* histograms = nullptr;  // [rows]
  int* ties = nullptr;                   // [rows, choose_tokens_parts]
};
inline constexpr int choose_tokens_parts = 64;  // of the vocabulary
/// The first kernels of choose_tokens(): `cuts`.
TERATRON_LAUNCHER(void, find_token_cuts, const ChooseTokensArgs& args, CUstream_st* stream);
TERATRON_LAUNCHER(void, choose_tokens, const ChooseTokensArgs& args, CUstream_st* stream);

struct ReplaceTokensArgs {
  const int64_t* tokens;
  const double* chosen;
  int rows;
  int64_t* out;
};
TERATRON_LAUNCHER(void, replace_negative_tokens, const ReplaceTokensArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
