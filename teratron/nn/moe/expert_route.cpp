#include "teratron/nn/moe/expert_route.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/parameter.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void save_route(AutogradContext* context, const ExpertRoutePtr& route) {
  context->saved_data["route"] = c10::IValue::make_capsule(route);
}
const ExpertRoute& saved_route(AutogradContext* context) {
  // saved_data keeps it alive.
  return static_cast<const ExpertRoute&>(*context->saved_data["route"].toCapsule());
}

at::Tensor arrived(AsyncTensor x) {
  x.work.wait();
  return x.tensor;
}

// Sums over all rows of a token, on whichever rank they are; on their way in `dtype`.
at::Tensor returned_sums(const at::Tensor& x_RH, const ExpertRoute& route, const Permutation& permutation,
                         at::ScalarType dtype) {
  const at::Tensor x = x_RH.contiguous();
  const at::Tensor sums_UH =
      at::empty({permutation.row_of_slot.size(0), x.size(1)}, x.options().dtype(dtype));
  return route.add_up(sums_UH,
                      [&](const TokenSlice& tokens) { sum_rows_of_tokens(sums_UH, x, permutation, tokens); });
}

struct Bring : torch::autograd::Function<Bring> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TW, const ExpertRoutePtr& route) {
    save_route(context, route);
    return arrived(route->start(x_TW));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {saved_route(context).add_up(gradients[0].contiguous(), [](const TokenSlice&) {}), at::Tensor()};
  }
};

// x_TH is what arrives: its gradient is needed, its value not.
struct PermuteArriving : torch::autograd::Function<PermuteArriving> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*x_TH*/, AsyncTensor& arriving,
                            const ExpertRoutePtr& route, const Permutation& permutation) {
    save_route(context, route);
    save_permutation(context, permutation);
    return gather_rows(arrived(std::move(arriving)), permutation);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor dx_TH = returned_sums(gradients[0], saved_route(context), saved_permutation(context),
                                           gradients[0].scalar_type());
    return {dx_TH, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct UnpermuteReturning : torch::autograd::Function<UnpermuteReturning> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_RH, const ExpertRoutePtr& route,
                            const Permutation& permutation, at::ScalarType dtype) {
    save_route(context, route);
    save_permutation(context, permutation);
    context->saved_data["dtype"] = y_RH.scalar_type();
    return returned_sums(y_RH, *route, permutation, main_grad_dtype(y_RH.scalar_type())).to(dtype);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor dy_TH = gradients[0].to(context->saved_data["dtype"].toScalarType());
    const at::Tensor dy_UH = arrived(saved_route(context).start(dy_TH));
    return {gather_rows(dy_UH, saved_permutation(context)), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor GatherRoute::add_up(const at::Tensor& sums_UW, const Produce& produce) const {
  const int64_t tokens = sums_UW.size(0) / group_.size;
  const at::Tensor own = at::empty({tokens, sums_UW.size(1)}, sums_UW.options());
  group_.communicator
      ->reduce_scatter_pipelined(
          own, sums_UW, ReduceOp::sum,
          [&](int64_t first, int64_t last) { produce({first * tokens, last * tokens}); })
      .wait();
  return own;
}

AsyncTensor AllToAllRoute::start(const at::Tensor& x_TW) const {
  return all_to_all_.start(sent_ ? gather_rows(x_TW, *sent_) : x_TW);
}

at::Tensor AllToAllRoute::add_up(const at::Tensor& sums_UW, const Produce& produce) const {
  produce({0, sums_UW.size(0)});
  const at::Tensor returned = arrived(all_to_all_.start_back(sums_UW));
  if (!sent_) return returned;
  const at::Tensor own = at::empty({sent_->row_of_slot.size(0), returned.size(1)}, returned.options());
  sum_rows_of_tokens(own, returned, *sent_, {0, own.size(0)});
  return own;
}

at::Tensor bring(const at::Tensor& x_TW, const ExpertRoutePtr& route) {
  return Bring::apply(x_TW, route);
}

at::Tensor permute_arriving(const at::Tensor& x_TH, AsyncTensor& arriving, const ExpertRoutePtr& route,
                            const Permutation& permutation) {
  return PermuteArriving::apply(x_TH, arriving, route, permutation);
}

at::Tensor unpermute_returning(const at::Tensor& y_RH, const ExpertRoutePtr& route,
                               const Permutation& permutation, at::ScalarType dtype) {
  return UnpermuteReturning::apply(y_RH, route, permutation, dtype);
}

}  // namespace teratron
