#include "teratron/nn/moe/permutation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor gather_rows(const at::Tensor& x_TH, const Permutation& permutation) {
  return x_TH.index_select(0, at::floor_divide(permutation.slot_of_row, permutation.topk()));
}

// Zero for slots without a row.
at::Tensor rows_of_slots(const at::Tensor& x_R, const at::Tensor& row_of_slot, const at::Tensor& kept) {
  const int64_t last = x_R.size(0) - 1;
  if (last < 0) {
    std::vector<int64_t> sizes = x_R.sizes().vec();
    sizes[0] = row_of_slot.size(0);
    return at::zeros(sizes, x_R.options());
  }
  if (!kept.defined()) return x_R.index_select(0, row_of_slot);
  const at::Tensor missing = kept.logical_not();
  return x_R.index_select(0, row_of_slot.clamp_max(last))
      .masked_fill(x_R.dim() == 1 ? missing : missing.unsqueeze(1), 0.0);
}

at::Tensor sum_rows(const at::Tensor& x_RH, const Permutation& permutation, at::ScalarType dtype) {
  const at::ScalarType wide = x_RH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum_TH;
  for (int64_t k = 0; k < permutation.topk(); ++k) {
    const at::Tensor kept = permutation.kept_TK.defined() ? permutation.kept_TK.select(1, k) : at::Tensor();
    const at::Tensor part_TH = rows_of_slots(x_RH, permutation.row_of_slot.select(1, k), kept);
    sum_TH = k == 0 ? part_TH.to(wide) : sum_TH.add_(part_TH);
  }
  return sum_TH.to(dtype);
}

void save(AutogradContext* context, const Permutation& permutation) {
  context->save_for_backward({permutation.slot_of_row, permutation.row_of_slot, permutation.kept_TK});
}
Permutation saved(AutogradContext* context) {
  const variable_list tensors = context->get_saved_variables();
  return {.slot_of_row = tensors[0], .row_of_slot = tensors[1], .kept_TK = tensors[2]};
}

struct Permute : torch::autograd::Function<Permute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TH,
                            const Permutation& permutation) {
    save(context, permutation);
    return gather_rows(x_TH, permutation);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {sum_rows(gradients[0], saved(context), gradients[0].scalar_type()), at::Tensor()};
  }
};

struct Unpermute : torch::autograd::Function<Unpermute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_RH, const Permutation& permutation,
                            at::ScalarType dtype) {
    save(context, permutation);
    context->saved_data["dtype"] = x_RH.scalar_type();
    return sum_rows(x_RH, permutation, dtype);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::ScalarType dtype = context->saved_data["dtype"].toScalarType();
    return {gather_rows(gradients[0].to(dtype), saved(context)), at::Tensor(), at::Tensor()};
  }
};

struct PermuteSlots : torch::autograd::Function<PermuteSlots> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TK,
                            const Permutation& permutation) {
    save(context, permutation);
    return x_TK.flatten().index_select(0, permutation.slot_of_row);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Permutation permutation = saved(context);
    const at::Tensor kept = permutation.kept_TK.defined() ? permutation.kept_TK.flatten() : at::Tensor();
    const at::Tensor dx = rows_of_slots(gradients[0], permutation.row_of_slot.flatten(), kept);
    return {dx.view_as(permutation.row_of_slot), at::Tensor()};
  }
};

}  // namespace

Permutation make_permutation(const at::Tensor& experts_TK, const at::Tensor& kept_TK,
                             const ExpertRange& experts, std::optional<int64_t> rows) {
  const at::Tensor local_TK = experts_TK - experts.first;
  at::Tensor has_row = (local_TK >= 0).logical_and_(local_TK < experts.count);
  if (kept_TK.defined()) has_row = has_row.logical_and_(kept_TK);
  // Others are sorted behind the last expert.
  const at::Tensor keys = local_TK.masked_fill(has_row.logical_not(), experts.count).flatten();
  const at::Tensor order = std::get<1>(at::sort(keys, /*stable=*/true, 0, /*descending=*/false));
  const at::Tensor places = at::arange(keys.numel(), keys.options());
  const at::Tensor counts = at::zeros({experts.count + 1}, keys.options())
                                .scatter_add_(0, keys, at::ones_like(keys))
                                .narrow(0, 0, experts.count);
  const bool all = rows && *rows == keys.numel();
  return {.slot_of_row = rows ? order.narrow(0, 0, *rows) : order,
          .row_of_slot = at::empty_like(order).scatter_(0, order, places).view_as(experts_TK),
          .kept_TK = all ? at::Tensor() : has_row,
          .ends_E = counts.cumsum(0).to(at::kInt)};
}

at::Tensor permute(const at::Tensor& x_TH, const Permutation& permutation) {
  return Permute::apply(x_TH, permutation);
}

at::Tensor unpermute(const at::Tensor& x_RH, const Permutation& permutation, at::ScalarType dtype) {
  return Unpermute::apply(x_RH, permutation, dtype);
}

at::Tensor permute_slots(const at::Tensor& x_TK, const Permutation& permutation) {
  return PermuteSlots::apply(x_TK, permutation);
}

}  // namespace teratron
