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
                               const RotaryEmbedding* rope, const std::optional<at::Tensor>& positions_SB) {
    context->save_for_backward({positions_SB.value_or(at::Tensor())});
    save_pointer(context, "rope", rope);
    context->saved_data["shape"] = qkv_SBGPD.sizes().vec();
    const int64_t per_group = qkv_SBGPD.size(3) - 2;
    at::Tensor q_SBGND = qkv_SBGPD.narrow(3, 0, per_group);
    const at::Tensor k_SBGD = qkv_SBGPD.select(3, per_group);
    // Heads are evenly spaced in memory only if a group has one, or if there is one group.
    const bool q_stays = per_group == 1 || qkv_SBGPD.size(2) == 1;
    if (rope && q_stays) {
      rope->rotate_(qkv_SBGPD.narrow(3, 0, per_group + 1), *positions_SB);
    } else if (rope) {
      rope->rotate_(k_SBGD, *positions_SB);
      q_SBGND = rope->rotated(q_SBGND, *positions_SB);
    }
    return {q_SBGND.flatten(2, 3), k_SBGD, qkv_SBGPD.select(3, per_group + 1)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    const int64_t per_group = shape[3] - 2;
    const at::Tensor dq_SBGND = gradients[0].unflatten(2, {shape[2], per_group});
    const at::Tensor dqkv_SBGPD = at::empty(shape, gradients[0].options());
    const at::Tensor to_q = dqkv_SBGPD.narrow(3, 0, per_group);
    const at::Tensor to_k = dqkv_SBGPD.select(3, per_group);
    if (const auto* rope = saved_pointer<const RotaryEmbedding>(context, "rope")) {
      const at::Tensor positions_SB = context->get_saved_variables()[0];
      rope->rotate_back(with_unit_stride(dq_SBGND), to_q, positions_SB);
      rope->rotate_back(with_unit_stride(gradients[1]), to_k, positions_SB);
    } else {
      copy_heads(with_unit_stride(dq_SBGND), to_q);
      copy_heads(with_unit_stride(gradients[1]), to_k);
    }
    copy_heads(with_unit_stride(gradients[2]), dqkv_SBGPD.select(3, per_group + 1));
    return {dqkv_SBGPD, at::Tensor(), at::Tensor()};
  }

  static at::Tensor with_unit_stride(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }
};

}  // namespace

QueryKeyValue split_qkv(const at::Tensor& qkv_SBGPD, const RotaryEmbedding* rope,
                        const at::Tensor& positions_SB) {
  const variable_list parts =
      SplitQkv::apply(qkv_SBGPD, rope, rope ? std::optional(positions_SB) : std::nullopt);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace teratron
