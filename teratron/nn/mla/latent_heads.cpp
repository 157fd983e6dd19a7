#include "teratron/nn/mla/latent_heads.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The first channels of x and the last ones, of which there are `last`.
struct Channels {
  at::Tensor first, last;
  Channels(const at::Tensor& x, int64_t count)
      : first(x.narrow(-1, 0, x.size(-1) - count)), last(x.narrow(-1, x.size(-1) - count, count)) {}
};

struct JoinHeads : torch::autograd::Function<JoinHeads> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q_SBND, const at::Tensor& kv_SBNE,
                               const at::Tensor& k_rope_SBD, const at::Tensor& positions_SB,
                               const RotaryEmbedding* rope) {
    context->save_for_backward({positions_SB});
    save_pointer(context, "rope", rope);
    const int64_t width = q_SBND.size(3), rotated = k_rope_SBD.size(2), nope = width - rotated;
    context->saved_data["rotated"] = rotated;
    rope->rotate_(Channels(q_SBND, rotated).last, positions_SB);
    const at::Tensor k_SBND = at::empty_like(q_SBND, at::MemoryFormat::Contiguous);
    const Channels k(k_SBND, rotated);
    k.first.copy_(kv_SBNE.narrow(3, 0, nope));
    k.last.copy_(rope->rotate(k_rope_SBD.unsqueeze(2), positions_SB));
    return {q_SBND.view_as(q_SBND), k_SBND, kv_SBNE.narrow(3, nope, kv_SBNE.size(3) - nope)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor positions_SB = context->get_saved_variables()[0];
    const auto* rope = saved_pointer<const RotaryEmbedding>(context, "rope");
    const int64_t rotated = context->saved_data["rotated"].toInt();
    const QkvRotation rotation = rope->rotation(positions_SB);
    const RopeOptions inverse{rotation.style, RopeDirection::inverse};
    const Channels dq(gradients[0], rotated), dk(gradients[1], rotated);
    const at::Tensor out_SBND = at::empty_like(gradients[0], at::MemoryFormat::Contiguous);
    const Channels out(out_SBND, rotated);
    out.first.copy_(dq.first);
    out.last.copy_(dq.last);
    rope_(out.last, rotation.table, positions_SB, inverse);
    const at::ScalarType dtype = dk.last.scalar_type();
    const at::Tensor dk_rope_SB1D =
        dk.last.sum(2, /*keepdim=*/true, at::promote_types(dtype, at::kFloat)).to(dtype).contiguous();
    rope_(dk_rope_SB1D, rotation.table, positions_SB, inverse);
    return {out_SBND, at::cat({dk.first, gradients[2]}, -1), dk_rope_SB1D.squeeze(2), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

QueryKeyValue join_heads(const LatentProjections& projections, const RotaryEmbedding& rope,
                         const at::Tensor& positions_SB) {
  const variable_list parts =
      JoinHeads::apply(projections.q_SBND, projections.kv_SBNE, projections.k_rope_SBD, positions_SB, &rope);
  return {parts[0], parts[1], parts[2]};
}

at::Tensor absorbed_attention(const at::Tensor& q_RND, const at::Tensor& up_NER, const SeenLatents& seen,
                              double scale) {
  const at::Tensor& latents_RLW = seen.latents_RLW;
  const int64_t rank = up_NER.size(2), rope = latents_RLW.size(2) - rank, nope = q_RND.size(2) - rope;
  const at::Tensor up_k_NDR = up_NER.narrow(1, 0, nope),
                   up_v_NDR = up_NER.narrow(1, nope, up_NER.size(1) - nope);
  const Channels q(q_RND, rope);
  const at::Tensor q_latent_RNR = at::bmm(q.first.transpose(0, 1), up_k_NDR).transpose(0, 1);
  const at::Tensor q_RNW = at::cat({q_latent_RNR, q.last}, 2);
  const at::ScalarType wide = at::promote_types(q_RND.scalar_type(), at::kFloat);
  at::Tensor scores_RNL = at::bmm(q_RNW, latents_RLW.transpose(1, 2)).to(wide) * scale;
  if (seen.positions_R.defined()) {
    const at::Tensor place_L = at::arange(latents_RLW.size(1), seen.positions_R.options());
    scores_RNL = scores_RNL.masked_fill(place_L.gt(seen.positions_R.unsqueeze(1)).unsqueeze(1), -INFINITY);
  }
  const at::Tensor weights_RNL = scores_RNL.softmax(-1).to(q_RND.scalar_type());
  const at::Tensor u_RNR = at::bmm(weights_RNL, latents_RLW.narrow(2, 0, rank));
  return at::bmm(u_RNR.transpose(0, 1), up_v_NDR.transpose(1, 2)).transpose(0, 1);
}

}  // namespace teratron
