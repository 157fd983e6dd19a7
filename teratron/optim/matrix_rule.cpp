#include "teratron/optim/matrix_rule.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/nn/parameter.h"

namespace teratron {

Group ranks_of_parts(const Parameter& parameter, const Mesh& mesh) {
  const Shard& shard = parameter.shard();
  if (shard.parts == 1) return {};
  const bool of_experts = parameter.options.replicated_over.contains(Axis::edp);
  Group group = mesh.group(of_experts ? Axis::etp : Axis::tp);
  TERATRON_ASSERT(group.size == shard.parts && group.rank == shard.index,
                  "{} is not divided over tensor-parallel ranks", parameter.name);
  return group;
}

void MatrixRule::step(const Slice& slice, const StepScalars& scalars) const {
  const at::NoGradGuard no_grad;
  const at::IntArrayRef sizes = slice.parameter->tensor.sizes();
  Matrix matrix{.parameter = *slice.parameter, .grad = slice.grad.view(sizes), .parts = slice.parts};
  if (scalars.grad_scale.defined()) matrix.grad = matrix.grad * scalars.grad_scale;
  for (const at::Tensor& state : slice.states) matrix.states.push_back(state.view(sizes));
  const Update next = update(matrix);
  for (size_t i = 0; i < matrix.states.size(); ++i) {
    const at::Tensor& state = matrix.states[i];
    state.copy_(scalars.found_inf.defined() ? at::where(scalars.found_inf == 0, next.states[i], state)
                                            : next.states[i]);
  }
  StepScalars unscaled = scalars;
  unscaled.grad_scale.reset();
  sgd_step_({.weights = slice.weights,
             .grad = next.direction.contiguous().view(-1),
             .momentum_buffer = {},
             .groups = slice.groups},
            unscaled, /*momentum=*/0.0);
}

}  // namespace teratron
