#include "teratron/models/transformer/insert_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The place [R] of each row among the tokens; that of a row which is not here is their number.
at::Tensor places_of(const at::Tensor& index_T, int64_t rows) {
  const int64_t tokens = index_T.numel();
  const at::Tensor target_T = index_T.masked_fill(index_T.lt(0), rows);  // a slot after the last for others
  return at::full({rows + 1}, tokens, index_T.options())
      .scatter(0, target_T, at::arange(tokens, index_T.options()))
      .narrow(0, 0, rows);
}

struct InsertRows : torch::autograd::Function<InsertRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SBH, const at::Tensor& rows_RH,
                            const at::Tensor& index_SB) {
    context->save_for_backward({index_SB});
    context->saved_data["rows"] = rows_RH.size(0);
    const at::Tensor taken = rows_RH.to(x_SBH.scalar_type()).index_select(0, index_SB.clamp_min(0).flatten());
    return at::where(index_SB.ge(0).unsqueeze(2), taken.view(x_SBH.sizes()), x_SBH);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor index_SB = context->get_saved_variables()[0], &dy_SBH = gradients[0];
    const at::Tensor places_R = places_of(index_SB.flatten(), context->saved_data["rows"].toInt());
    const int64_t tokens = index_SB.numel();
    const at::Tensor d_rows = dy_SBH.reshape({tokens, -1})
                                  .index_select(0, places_R.clamp_max(tokens - 1))
                                  .masked_fill(places_R.eq(tokens).unsqueeze(1), 0);
    return {dy_SBH.masked_fill(index_SB.ge(0).unsqueeze(2), 0), d_rows, at::Tensor()};
  }
};

}  // namespace

at::Tensor insert_rows(const at::Tensor& x_SBH, const at::Tensor& rows_RH, const at::Tensor& index_SB,
                       const TensorParallel& parallel) {
  // A sequence shard has the places of some rows.
  const at::Tensor rows = parallel.sequence_parallel ? copy_to(rows_RH, parallel.group) : rows_RH;
  return InsertRows::apply(x_SBH, rows, parallel.sequence_shard(index_SB).contiguous());
}

}  // namespace teratron
