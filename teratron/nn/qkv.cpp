#include "teratron/nn/qkv.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SplitQkv : torch::autograd::Function<SplitQkv> {
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv_SBGPD,
                               const RotaryEmbedding* rope, const std::optional<at::Tensor>& positions_SB,
                               const Parameter* bias) {
    context->save_for_backward({positions_SB.value_or(at::Tensor())});
    save_pointer(context, "rope", rope);
    save_pointer(context, "bias", bias);
    context->saved_data["groups"] = qkv_SBGPD.size(2);
    const int64_t per_group = qkv_SBGPD.size(3) - 2;
    auto [q_SBGND, k_SBGD, v_SBGD] = parts_of(qkv_SBGPD);
    // Heads are evenly spaced in memory only if a group has one, or if there is one group.
    const bool q_stays = per_group == 1 || qkv_SBGPD.size(2) == 1;
    if (rope && q_stays) {
      rope->rotate_(qkv_SBGPD.narrow(3, 0, per_group + 1), *positions_SB);
    } else if (rope) {
      rope->rotate_(k_SBGD, *positions_SB);
      q_SBGND = rope->rotated(q_SBGND, *positions_SB);
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
    const MergedQkv merged = merge_qkv(parts, rotation ? &*rotation : nullptr, gradient_place(bias));
    if (bias) add_gradient(*bias, merged.column_sum);
    return {merged.qkv, at::Tensor(), at::Tensor(), at::Tensor()};
  }

  static at::Tensor with_unit_stride(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }
};

}  // namespace

QueryKeyValue split_qkv(const at::Tensor& qkv_SBGPD, const RotaryEmbedding* rope,
                        const at::Tensor& positions_SB, Parameter* bias) {
  const variable_list parts =
      SplitQkv::apply(qkv_SBGPD, rope, rope ? std::optional(positions_SB) : std::nullopt, bias);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace teratron
