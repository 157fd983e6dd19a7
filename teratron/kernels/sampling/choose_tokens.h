// The next token of each row of logits on a GPU: the most probable one, or one drawn with the probabilities
// softmax(logits / temperature).
//
// logits [R, V], rows of any stride; f32, bf16, f16. parameters f64 [R, 5]: temperature, top_k (1: the most
// probable token, of equal ones the first; else drawn), top_p, a random number u in (0, 1], a token whose
// logit is taken as -1e10 (-1: none). With top_k > 1 a token is drawn from the k most probable ones and those
// that tie with the k-th. Else with top_p > 0 it is drawn from those before which the mass of more probable
// ones does not exceed p, of equal ones the first. The token drawn is the first at which the cumulative
// probability reaches u. Sums in f64, in fixed order, or of integers. Asynchronous on the current CUDA
// stream; can be captured.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

struct ChooseTokensOptions {
  bool samples = true;    // false: every row takes its most probable token
  bool filters = true;    // false: no row has top_k > 1 or top_p > 0
  bool logprobs = false;  // else zeros
};
/// f64 [2, R]: ids, and log probabilities at temperature 1.
at::Tensor choose_tokens(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                         const ChooseTokensOptions& options);

/// tokens i64 [R], contiguous, those below 0 replaced by the ids of the same rows of `chosen` f64 [R],
/// contiguous. CPU and CUDA.
at::Tensor replace_negative_tokens(const at::Tensor& tokens_R, const at::Tensor& chosen_R);

}  // namespace teratron
