#include "teratron/nn/moe/permutation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/experts/sum_rows.h"
#include "teratron/nn/parallel_matmul.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Zero for slots without a row.
at::Tensor numbers_of_slots(const at::Tensor& x_R, const at::Tensor& row_of_slot, const at::Tensor& kept) {
  const int64_t last = x_R.size(0) - 1;
  if (last < 0) return at::zeros(row_of_slot.sizes(), x_R.options());
  if (!kept.defined()) return x_R.index_select(0, row_of_slot);
  return x_R.index_select(0, row_of_slot.clamp_max(last)).masked_fill(kept.logical_not(), 0.0);
}

at::Tensor contiguous(const at::Tensor& x) {
  return x.defined() ? x.contiguous() : x;
}

at::Tensor sum_of_rows(const at::Tensor& x_RH, const Permutation& permutation, at::ScalarType dtype) {
  return sum_rows(x_RH.contiguous(), contiguous(permutation.row_of_slot), contiguous(permutation.kept_TK),
                  dtype);
}

struct Permute : torch::autograd::Function<Permute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TH,
                            const Permutation& permutation) {
    save_permutation(context, permutation);
    return gather_rows(x_TH, permutation);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {sum_of_rows(gradients[0], saved_permutation(context), gradients[0].scalar_type()), at::Tensor()};
  }
};

struct Unpermute : torch::autograd::Function<Unpermute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_RH, const Permutation& permutation,
                            at::ScalarType dtype) {
    save_permutation(context, permutation);
    context->saved_data["dtype"] = x_RH.scalar_type();
    return sum_of_rows(x_RH, permutation, dtype);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::ScalarType dtype = context->saved_data["dtype"].toScalarType();
    return {gather_rows(gradients[0].to(dtype), saved_permutation(context)), at::Tensor(), at::Tensor()};
  }
};

struct PermuteSlots : torch::autograd::Function<PermuteSlots> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TK,
                            const Permutation& permutation) {
    save_permutation(context, permutation);
    at::Tensor x_R = x_TK.flatten().index_select(0, permutation.slot_of_row);
    return permutation.filled_R.defined() ? x_R.masked_fill_(permutation.filled_R.logical_not(), 0.0) : x_R;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Permutation permutation = saved_permutation(context);
    const at::Tensor kept = permutation.kept_TK.defined() ? permutation.kept_TK.flatten() : at::Tensor();
    const at::Tensor dx = numbers_of_slots(gradients[0], permutation.row_of_slot.flatten(), kept);
    return {dx.view_as(permutation.row_of_slot), at::Tensor()};
  }
};

// Slots sorted by expert; those without a row come after the last one.
struct SortedSlots {
  at::Tensor has_row_TK;
  at::Tensor keys;    // of slots: their expert, counted from the first one
  at::Tensor order;   // slots
  at::Tensor counts;  // of experts, and of slots without a row

  SortedSlots(const at::Tensor& experts_TK, const at::Tensor& kept_TK, const ExpertRange& experts) {
    has_row_TK = choices_of(experts_TK, kept_TK, experts);
    keys = (experts_TK - experts.first).masked_fill(has_row_TK.logical_not(), experts.count).flatten();
    // A radix sort takes a pass for every few bits.
    const at::Tensor narrow = experts.count <= INT16_MAX ? keys.to(at::kShort) : keys;
    order = std::get<1>(at::sort(narrow, /*stable=*/true, 0, /*descending=*/false));
    counts = at::zeros({experts.count + 1}, keys.options()).scatter_add_(0, keys, at::ones_like(keys));
  }
  at::Tensor places() const { return at::arange(keys.numel(), keys.options()); }
};

}  // namespace

at::Tensor choices_of(const at::Tensor& experts_TK, const at::Tensor& kept_TK, const ExpertRange& experts) {
  const at::Tensor chosen_TK =
      (experts_TK >= experts.first).logical_and_(experts_TK < experts.first + experts.count);
  return kept_TK.defined() ? chosen_TK.logical_and(kept_TK) : chosen_TK;
}

void save_permutation(AutogradContext* context, const Permutation& permutation) {
  context->save_for_backward({permutation.slot_of_row, permutation.row_of_slot, permutation.kept_TK});
}
Permutation saved_permutation(AutogradContext* context) {
  const variable_list tensors = context->get_saved_variables();
  return {.slot_of_row = tensors[0], .row_of_slot = tensors[1], .kept_TK = tensors[2]};
}

Permutation Permutation::first_rows(int64_t count) const {
  Permutation result = *this;
  result.slot_of_row = slot_of_row.narrow(0, 0, count);
  if (count == row_of_slot.numel()) result.kept_TK = at::Tensor();
  return result;
}

Permutation make_permutation(const at::Tensor& experts_TK, const at::Tensor& kept_TK,
                             const ExpertRange& experts) {
  const SortedSlots slots(experts_TK, kept_TK, experts);
  const at::Tensor& order = slots.order;
  return {.slot_of_row = order,
          .row_of_slot = at::empty_like(order).scatter_(0, order, slots.places()).view_as(experts_TK),
          .kept_TK = slots.has_row_TK,
          .ends_E = slots.counts.narrow(0, 0, experts.count).cumsum(0).to(at::kInt)};
}

Permutation make_padded_permutation(const at::Tensor& experts_TK, const at::Tensor& kept_TK,
                                    const ExpertRange& experts, int64_t rows_per_expert) {
  const SortedSlots slots(experts_TK, kept_TK, experts);
  const int64_t rows = experts.count * rows_per_expert;
  const at::Tensor keys = slots.keys.index_select(0, slots.order);
  const at::Tensor starts = slots.counts.cumsum(0) - slots.counts;
  // Slots without a row go to one after all, which is cut off.
  const at::Tensor row =
      (keys * rows_per_expert + slots.places() - starts.index_select(0, keys)).clamp_max(rows);
  const at::Tensor filled = at::zeros({rows + 1}, keys.options().dtype(at::kBool)).scatter_(0, row, true);
  const at::Tensor slot_of_row = at::zeros({rows + 1}, keys.options()).scatter_(0, row, slots.order);
  return {.slot_of_row = slot_of_row.narrow(0, 0, rows),
          .row_of_slot = at::empty_like(row).scatter_(0, slots.order, row).view_as(experts_TK),
          .kept_TK = slots.has_row_TK,
          .filled_R = filled.narrow(0, 0, rows),
          .ends_E = at::arange(1, experts.count + 1, keys.options().dtype(at::kInt)) * rows_per_expert};
}

at::Tensor gather_rows(const at::Tensor& x_TH, const Permutation& permutation) {
  return x_TH.index_select(0, at::floor_divide(permutation.slot_of_row, permutation.topk()));
}

void sum_rows_of_tokens(const at::Tensor& out_TH, const at::Tensor& x_RH, const Permutation& permutation,
                        const TokenSlice& tokens) {
  const auto of_tokens = [&](const at::Tensor& x) { return slice_rows(x, tokens.begin, tokens.end); };
  sum_rows_out(of_tokens(out_TH), x_RH, contiguous(of_tokens(permutation.row_of_slot)),
               contiguous(of_tokens(permutation.kept_TK)));
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
