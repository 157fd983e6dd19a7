#include "teratron/nn/attention/split_qkv.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SplitQkv : torch::autograd::Function<SplitQkv> {
  struct Args {
    const RotaryEmbedding* rope;
    bool rope_applied;
    const Parameter* bias;
  };

  static variable_list forward(AutogradContext* context, const at::Tensor& qkv_SBGPD,
                               const std::optional<at::Tensor>& positions_SB,
                               const std::optional<at::Tensor>& /*anchor*/, const Args& args) {
    const auto& [rope, rope_applied, bias] = args;
    context->save_for_backward({positions_SB.value_or(at::Tensor())});
    save_pointer(context, "rope", rope);
    save_pointer(context, "bias", bias);
    context->saved_data["groups"] = qkv_SBGPD.size(2);
    auto [q_SBGND, k_SBGD, v_SBGD] = unpack_qkv(qkv_SBGPD);
    if (rope && !rope_applied) {
      rope->rotate_(k_SBGD, *positions_SB);
      q_SBGND = rope->rotate(q_SBGND, *positions_SB);
    }
    return {q_SBGND.flatten(2, 3), k_SBGD, v_SBGD};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const int64_t groups = context->saved_data["groups"].toInt();
    const QkvParts parts{.q = with_unit_stride(gradients[0].unflatten(2, {groups, -1})),
                         .k = with_unit_stride(gradients[1]),
                         .v = with_unit_stride(gradients[2])};
    const auto* rope = saved_pointer<const RotaryEmbedding>(context, "rope");
    auto* bias = saved_pointer<Parameter>(context, "bias");
    const std::optional<QkvRotation> rotation =
        rope ? std::optional(rope->rotation(context->get_saved_variables()[0])) : std::nullopt;
    const MergedQkv merged = merge_qkv(parts, rotation ? &*rotation : nullptr, grad_sink(bias));
    if (bias) accumulate_grad(*bias, merged.dbias);
    return {merged.qkv, at::Tensor(), at::Tensor(), at::Tensor()};
  }

  static at::Tensor with_unit_stride(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }
};

}  // namespace

bool queries_are_view(int64_t groups, int64_t queries_per_group) {
  return queries_per_group == 1 || groups == 1;
}

QueryKeyValue split_qkv(const QkvProjection& projection, const RotaryEmbedding* rope,
                        const at::Tensor& positions_SB) {
  const SplitQkv::Args args{rope, projection.rope_applied, projection.bias};
  const Parameter* const bias = projection.bias;
  const variable_list parts =
      SplitQkv::apply(projection.qkv_SBGPD, rope ? std::optional(positions_SB) : std::nullopt,
                      bias ? std::optional(bias->tensor) : std::nullopt, args);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace teratron
