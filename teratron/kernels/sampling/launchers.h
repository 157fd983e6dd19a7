// Launchers of choose_tokens.h. Raw device pointers.
#pragma once

#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

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
};
inline constexpr int choose_tokens_parts = 64;  // of the vocabulary
TERATRON_LAUNCHER(void, choose_tokens, const ChooseTokensArgs& args, CUstream_st* stream);

struct ReplaceTokensArgs {
  const int64_t* tokens;
  const double* chosen;
  int rows;
  int64_t* out;
};
TERATRON_LAUNCHER(void, replace_negative_tokens, const ReplaceTokensArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
