// Tokens in the order of their experts, and back.
//
// Each choice (token t, its k-th expert) is a slot t K + k. The rows of an expert are consecutive, those of
// the first expert first, its tokens in ascending order. Places are computed on the device: the host never
// waits. Both directions gather, so that sums have a fixed order: a token's rows are added in ascending order
// of its experts, in fp32 (fp64).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct AutogradContext;  // <torch/csrc/autograd/custom_function.h> would cost every source a second
}

namespace teratron {

struct Permutation {
  at::Tensor slot_of_row;  // i64 [R]
  at::Tensor row_of_slot;  // i64 [T, K]
  /// bool [T, K]: slots that have a row of an expert; undefined: all. Other rows come after those of all
  /// experts, and what they hold is not read.
  at::Tensor kept_TK;
  /// bool [R]: rows of a slot; undefined: all before the last end. Others have a probability of 0, and so no
  /// part in any result or gradient.
  at::Tensor filled_R = {};
  at::Tensor ends_E;  // i32: the end of each expert's rows

  int64_t topk() const { return row_of_slot.size(1); }
  int64_t rows() const { return slot_of_row.size(0); }
  /// Without the rows after the first `count`, which are of no expert.
  Permutation first_rows(int64_t count) const;
};

/// The experts that rows are made for.
struct ExpertRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// `kept_TK` may be undefined: nothing is dropped. There are T K rows (first_rows()).
Permutation make_permutation(const at::Tensor& experts_TK, const at::Tensor& kept_TK,
                             const ExpertRange& experts);

/// Every expert has `rows_per_expert` rows, of which the last ones are padding: shapes do not depend on the
/// choices, no more of which may be kept.
Permutation make_padded_permutation(const at::Tensor& experts_TK, const at::Tensor& kept_TK,
                                    const ExpertRange& experts, int64_t rows_per_expert);

/// x [T, H] -> [R, H]. Differentiable.
at::Tensor permute(const at::Tensor& x_TH, const Permutation& permutation);
/// The sums of each token's rows [R, H] -> [T, H], of the rows' dtype or wider. Differentiable.
at::Tensor unpermute(const at::Tensor& x_RH, const Permutation& permutation, at::ScalarType dtype);
/// A number of each slot [T, K] -> [R], 0 for padding. Differentiable.
at::Tensor permute_slots(const at::Tensor& x_TK, const Permutation& permutation);

/// bool [T, K]: choices of these experts that are kept.
at::Tensor choices_of(const at::Tensor& experts_TK, const at::Tensor& kept_TK, const ExpertRange& experts);

// Without autograd.

/// permute().
at::Tensor gather_rows(const at::Tensor& x_TH, const Permutation& permutation);
/// unpermute() of the tokens [begin, end) into these rows of `out_TH`; x contiguous.
struct TokenSlice {
  int64_t begin, end;
};
void sum_rows_of_tokens(const at::Tensor& out_TH, const at::Tensor& x_RH, const Permutation& permutation,
                        const TokenSlice& tokens);

/// What backward needs of a permutation.
void save_permutation(torch::autograd::AutogradContext* context, const Permutation& permutation);
Permutation saved_permutation(torch::autograd::AutogradContext* context);

}  // namespace teratron
