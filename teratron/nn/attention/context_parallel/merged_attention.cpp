#include "teratron/nn/attention/context_parallel/merged_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/attention/sinks.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MergedFunction : torch::autograd::Function<MergedFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& sinks_N,
                            const c10::intrusive_ptr<MergedAttention>& parts) {
    PartialAttention whole = parts->forward({q, k, v});
    if (sinks_N) whole = with_sinks(whole, *sinks_N, q.scalar_type());
    context->save_for_backward({q, k, v, whole.y_SBND, whole.logsumexp_BNS, sinks_N.value_or(at::Tensor())});
    context->saved_data["parts"] = c10::IValue::make_capsule(parts);
    return whole.y_SBND.flatten(2);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto holder = context->saved_data["parts"].toCapsule();
    const auto& parts = static_cast<const MergedAttention&>(*holder);
    const at::Tensor dy = gradients[0].contiguous().view(saved[3].sizes());
    const PartialAttention whole{saved[3], saved[4]};
    const QueryKeyValue d = parts.backward({saved[0], saved[1], saved[2]}, whole, dy);
    const at::Tensor dsinks = saved[5].defined() ? sinks_gradient(whole, dy, saved[5]) : at::Tensor();
    return {d.q_SBND, d.k_SBGD, d.v_SBGD, dsinks, at::Tensor()};
  }
};

}  // namespace

at::Tensor merged_attention(const QueryKeyValue& qkv, const c10::intrusive_ptr<MergedAttention>& parts,
                            const at::Tensor& sinks_N) {
  return MergedFunction::apply(qkv.q_SBND, qkv.k_SBGD, qkv.v_SBGD,
                               sinks_N.defined() ? std::optional(sinks_N) : std::nullopt, parts);
}

AttentionRequest without_tensors(AttentionRequest request) {
  request.q_SBND = request.k_SBGD = request.v_SBGD = request.query_rows_S = request.sinks_N = at::Tensor();
  request.dropout_row_ids = nullptr;
  return request;
}

}  // namespace teratron
