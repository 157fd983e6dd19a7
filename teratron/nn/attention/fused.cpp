#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/attention/fused_attention.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ALiBi is a bias by distance, too: column c is the key c - (Sk - 1) from the query's own.
at::Tensor bias_of(const AttentionRequest& request) {
  if (!request.alibi_slopes.defined()) return request.distance_bias;
  const int64_t queries = request.q_SBND.size(0), keys = request.k_SBGD.size(0);
  const at::Tensor slopes = request.alibi_slopes.to(at::kFloat);
  const at::Tensor alibi = slopes.unsqueeze(1) * at::arange(1 - keys, queries, slopes.options());
  return request.distance_bias.defined() ? request.distance_bias + alibi : alibi;
}

FusedAttentionOptions options_of(const AttentionRequest& request) {
  FusedAttentionOptions options{.scale = request.scale,
                                .softcap = request.softcap,
                                .causal = is_causal(request),
                                .window = has_window(request) ? request.window : 0};
  if (request.segments.defined()) {
    options.cu_seqlens_q = request.segments.cu_seqlens_q;
    options.cu_seqlens_k = request.segments.keys();
  }
  if (request.dropout > 0.0) {
    options.dropout = {.p = request.dropout,
                       .key = {request.dropout_key.seed, request.dropout_key.site},
                       .where = {.rows = score_row_ids(request)}};
  }
  return options;
}

FusedAttentionOptions saved_options(AutogradContext* context, const variable_list& saved) {
  return {.scale = context->saved_data["scale"].toDouble(),
          .softcap = context->saved_data["softcap"].toDouble(),
          .causal = context->saved_data["causal"].toBool(),
          .window = context->saved_data["window"].toInt(),
          .cu_seqlens_q = saved[7],
          .cu_seqlens_k = saved[8],
          .dropout = saved_dropout(context, saved[9])};
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_SBND, const at::Tensor& k_SBGD,
                            const at::Tensor& v_SBGD, const std::optional<at::Tensor>& bias,
                            const FusedAttentionOptions& options) {
    const FusedAttentionInputs inputs{q_SBND, k_SBGD, v_SBGD, bias.value_or(at::Tensor())};
    const FusedAttentionOutput output = fused_attention(inputs, options);
    context->save_for_backward({q_SBND, k_SBGD, v_SBGD, inputs.bias, output.y_SBND, output.logsumexp_BNS,
                                output.ranges_BS2, options.cu_seqlens_q, options.cu_seqlens_k,
                                options.dropout.where.rows});
    context->saved_data["scale"] = options.scale;
    context->saved_data["softcap"] = options.softcap;
    context->saved_data["causal"] = options.causal;
    context->saved_data["window"] = options.window;
    save_dropout(context, options.dropout);
    return output.y_SBND.flatten(2);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const FusedAttentionInputs inputs{saved[0], saved[1], saved[2], saved[3]};
    const QueryKeyValue d = empty_gradients({saved[0], saved[1], saved[2]});
    const at::Tensor dy_SBND = gradients[0].contiguous().view(saved[4].sizes());
    at::Tensor dbias;
    if (inputs.bias.defined() && context->needs_input_grad(3))
      dbias = at::empty(inputs.bias.sizes(), inputs.bias.options());
    fused_attention_backward(inputs, saved_options(context, saved), {saved[4], saved[5], saved[6]}, dy_SBND,
                             {d.q_SBND, d.k_SBGD, d.v_SBGD, dbias});
    return {d.q_SBND, d.k_SBGD, d.v_SBGD, dbias, at::Tensor()};
  }
};

}  // namespace

at::Tensor fused(const AttentionRequest& request) {
  const at::Tensor bias = bias_of(request);
  return FusedAttention::apply(request.q_SBND, request.k_SBGD, request.v_SBGD,
                               bias.defined() ? std::optional(bias) : std::nullopt, options_of(request));
}

}  // namespace teratron
