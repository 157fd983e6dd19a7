// The GEMMs of a linear layer per expert, over rows that are sorted by expert (permutation.h):
//
//   y = x W_e^T        dx = dy W_e        dW_e += dy^T x
//
// for the rows [ends[e - 1], ends[e]) of expert e. Rows after the last end are not defined in the results.
//
// bf16 on a GPU: grouped GEMMs, whose groups are known to the device only (kernels/grouped_gemm); where they
// have no kernel, torch's, which rounds dW to bf16 before it is added. Otherwise one GEMM per expert, for
// which the host reads the ends.
#pragma once

#include <optional>
#include <vector>

#include "teratron/kernels/fp8/fp8.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// One parameter, or weight, per local expert, all of the same shape.
using ExpertParameters = std::vector<Parameter*>;
using ExpertWeights = std::vector<at::Tensor>;
ExpertWeights weights_of(const ExpertParameters& parameters);

class GroupedGemm {
 public:
  /// For operands like `rows` with these ends, i32 [E].
  GroupedGemm(const at::Tensor& ends_E, const at::Tensor& rows);
  /// The groups for GEMMs in FP8.
  const Fp8Groups& fp8_groups() const;

  at::Tensor forward(const at::Tensor& x_RI, const ExpertWeights& weight) const;
  at::Tensor forward(const at::Tensor& x_RI, const ExpertParameters& weight) const {
    return forward(x_RI, weights_of(weight));
  }
  at::Tensor input_grad(const at::Tensor& dy_RO, const ExpertWeights& weight) const;
  at::Tensor input_grad(const at::Tensor& dy_RO, const ExpertParameters& weight) const {
    return input_grad(dy_RO, weights_of(weight));
  }
  /// [E, O, I], of main_grad's dtype.
  at::Tensor weight_grads(const at::Tensor& dy_RO, const at::Tensor& x_RI, int64_t experts) const;
  /// Into main_grad; experts without rows have a gradient of zero. Frozen weights have none.
  void accumulate_weight_grad(const at::Tensor& dy_RO, const at::Tensor& x_RI,
                              const ExpertParameters& weight) const;

 private:
  at::Tensor rows_of(const at::Tensor& x, size_t expert) const;
  // [E, O, I]; overwrites it unless `add`.
  void write_on_device(const at::Tensor& dw_EOI, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                       bool add) const;

  at::Tensor ends_E_;
  int64_t rows_;
  mutable std::optional<Fp8Groups> fp8_groups_;  // null: not used yet
  std::vector<int64_t> ends_;                    // empty: grouped by the device
};

/// For gradients that were written to main_grad, and weights that have none: they are complete.
void count_grads(const ExpertParameters& weight);

/// Calls write(sum, add), which overwrites `sum` unless `add`, for main_grad of all experts [E, ...], or for
/// a block that is then added to it. The weights are not frozen.
void accumulate_block(const ExpertParameters& weight,
                      c10::function_ref<void(const at::Tensor& sum, bool add)> write);

/// [E, ...] of all experts: a view of a gradient buffer's parameters where they are evenly spaced.
at::Tensor as_block(const ExpertWeights& weights);
inline at::Tensor as_block(const ExpertParameters& parameters) {
  return as_block(weights_of(parameters));
}

}  // namespace teratron
