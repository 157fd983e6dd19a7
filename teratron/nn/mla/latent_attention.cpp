#include "teratron/nn/mla/latent_attention.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/nn/mla/latent_heads.h"

namespace teratron {

namespace {

using Options = LatentAttentionOptions;

// Takes hidden states; whole on every rank.
LinearOptions down_projection(const Options& options, int64_t out) {
  return {.in = options.attention.hidden,
          .out = out,
          .bias = options.attention.qkv_bias,
          .init = options.attention.qkv_init,
          .replicated = true};
}

LinearOptions head_projection(const Options& options, int64_t in, int64_t channels) {
  return {
      .in = in, .out = options.attention.heads * channels, .bias = false, .init = options.attention.qkv_init};
}

LinearOptions query_projection(const Options& options) {
  const int64_t in = options.query_rank > 0 ? options.query_rank : options.attention.hidden;
  LinearOptions linear = head_projection(options, in, options.attention.kv_channels);
  if (options.query_rank == 0) linear.parts = {{"linear_q", options.attention.kv_channels}};
  return linear;
}

LinearOptions key_value_projection(const Options& options) {
  return head_projection(options, options.kv_rank, options.nope_channels() + options.attention.v_channels);
}

LinearOptions output_projection(const Options& options) {
  const AttentionLayerOptions& attention = options.attention;
  return {.in = attention.heads * attention.v_channels,
          .out = attention.hidden,
          .bias = attention.bias,
          .init = attention.output_init};
}

}  // namespace

LatentAttention::LatentAttention(const Scope& scope, const Options& options, const TensorParallel& parallel)
    : options_(options),
      parallel_(parallel),
      core_(options.attention, scope, parallel.group),
      q_up_(scope / (options.query_rank > 0 ? "linear_q_up_proj" : "linear_q_proj"),
            query_projection(options), parallel),
      kv_down_(scope / "linear_kv_down_proj", down_projection(options, options.state_width()), parallel),
      kv_up_(scope / "linear_kv_up_proj", key_value_projection(options), parallel),
      output_(scope / "linear_proj", output_projection(options), parallel) {
  TERATRON_ASSERT(options.attention.query_groups == options.attention.heads, "latents of grouped queries");
  if (options.query_rank > 0)
    q_down_.emplace(scope / "linear_q_down_proj", down_projection(options, options.query_rank), parallel);
  if (!options.norm) return;
  if (options.query_rank > 0)
    q_norm_.emplace(scope / "q_layernorm", options.query_rank, *options.norm, parallel);
  kv_norm_.emplace(scope / "kv_layernorm", options.kv_rank, *options.norm, parallel);
}

at::Tensor LatentAttention::queries(const at::Tensor& x_SBH, const DropoutArgs& dropout) {
  at::Tensor c_SBR = x_SBH;
  if (q_down_) c_SBR = apply_bias_grad(q_down_->forward(x_SBH, nullptr, &dropout));
  if (q_norm_) c_SBR = q_norm_->forward(c_SBR);
  return q_up_.forward(c_SBR, nullptr, &dropout).x_SBH.unflatten(-1, {heads(), core_.kv_channels()});
}

// Each rank uses the key for its own heads.
LatentAttention::Latents LatentAttention::latents(const at::Tensor& x_SBH, const DropoutArgs& dropout) {
  const at::Tensor both = apply_bias_grad(kv_down_.forward(x_SBH, nullptr, &dropout));
  at::Tensor c_SBR = both.narrow(-1, 0, options_.kv_rank);
  if (kv_norm_) c_SBR = kv_norm_->forward(c_SBR);
  const at::Tensor k_rope_SBD = both.narrow(-1, options_.kv_rank, options_.rope_channels).contiguous();
  return {c_SBR, parallel_.sequence_parallel ? all_gather(k_rope_SBD, 0, parallel_.group)
                                             : copy_to(k_rope_SBD, parallel_.group)};
}

QueryKeyValue LatentAttention::expand(const at::Tensor& q_SBND, const Latents& latents,
                                      const DropoutArgs& dropout, const LayerContext& context) {
  const at::Tensor kv_SBF = kv_up_.forward(latents.c_SBR, nullptr, &dropout).x_SBH;
  return join_heads({q_SBND, kv_SBF.unflatten(-1, {heads(), -1}), latents.k_rope_SBD}, *context.rope,
                    context.positions_SB);
}

Hidden LatentAttention::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                                             const LayerContext& context, LayerState* state) {
  TERATRON_ASSERT(context.rope, "latent attention without rotary positions");
  const at::Tensor x_SBH = normed_SBH.tensor();
  const at::Tensor q_SBND = queries(x_SBH, residual.dropout);
  const Latents compressed = latents(x_SBH, residual.dropout);
  const at::Tensor y_SBF =
      state ? generate(q_SBND, compressed, static_cast<LatentState&>(*state), context)
            : core_.forward(expand(q_SBND, compressed, residual.dropout, context), context.segments, context);
  return output_.forward_add_residual(y_SBF, residual);
}

std::unique_ptr<LayerState> LatentAttention::make_state(LayerState* /*before*/) const {
  return std::make_unique<LatentState>(options_.state_width(),
                                       kv_up_.matmul().weight().tensor.options().requires_grad(false));
}

at::Tensor LatentAttention::up_weight() {
  const at::Tensor& weight = kv_up_.matmul().weight().tensor;
  if (!kv_up_.adapter()) {
    register_use(kv_up_.matmul().weight());
    return weight.detach().view({heads(), -1, options_.kv_rank});
  }
  const at::Tensor unit_R1R = at::eye(options_.kv_rank, weight.options().requires_grad(false)).unsqueeze(1);
  return kv_up_.forward(unit_R1R).x_SBH.squeeze(1).t().reshape({heads(), -1, options_.kv_rank});
}

at::Tensor LatentAttention::attend_row(const at::Tensor& q_TBND, const LatentState& state,
                                       const GenerationRow& row, const LayerContext& context) {
  const at::Tensor latents_LW = state.sequence(row.sequence);
  if (row.tokens == 1)
    return absorbed_attention(q_TBND.squeeze(1), up_weight(), {latents_LW.unsqueeze(0)}, core_.scale())
        .flatten(1)
        .unsqueeze(1);
  const at::Tensor c_L1R = latents_LW.narrow(1, 0, options_.kv_rank).contiguous().unsqueeze(1);
  const at::Tensor kv_L1NE = kv_up_.forward(c_L1R).x_SBH.unflatten(-1, {heads(), -1});
  const int64_t nope = options_.nope_channels();
  const at::Tensor k_rope = latents_LW.narrow(1, options_.kv_rank, options_.rope_channels);
  const at::Tensor k_rope_L1ND =
      k_rope.unsqueeze(1).unsqueeze(2).expand({-1, 1, heads(), options_.rope_channels});
  return core_.forward({q_TBND, at::cat({kv_L1NE.narrow(3, 0, nope), k_rope_L1ND}, 3),
                        kv_L1NE.narrow(3, nope, core_.v_channels())},
                       {}, context);
}

at::Tensor LatentAttention::generate(const at::Tensor& q_SBND, const Latents& latents,
                                     const LatentState& state, const LayerContext& context) {
  const GenerationBatch& batch = *context.generation;
  const int64_t tokens = q_SBND.size(0), rope = options_.rope_channels;
  context.rope->rotate_(q_SBND.narrow(3, options_.nope_channels(), rope), context.positions_SB);
  const at::Tensor k_T11D = context.rope->rotate(latents.k_rope_SBD.unsqueeze(2), context.positions_SB);
  const at::Tensor new_TW = at::cat({latents.c_SBR.squeeze(1), k_T11D.view({tokens, rope})}, 1);
  const int64_t decoded = batch.table_RP.defined() ? batch.decode_rows : 0;
  const at::Tensor positions_R = context.positions_SB.select(1, 0).narrow(0, 0, decoded);
  if (decoded > 0) state.store_last(new_TW.narrow(0, 0, decoded), batch.table_RP, positions_R);
  if (decoded < tokens) {
    const int64_t others = tokens - decoded;
    state.store(new_TW.narrow(0, decoded, others), batch.places_T.narrow(0, decoded, others));
  }
  const at::Tensor y_T1F =
      at::empty({tokens, 1, heads() * core_.v_channels()}, q_SBND.options().requires_grad(false));
  if (decoded > 0) {
    const SeenLatents seen{state.sequences(batch.table_RP), positions_R};
    const at::Tensor y_RND =
        absorbed_attention(q_SBND.squeeze(1).narrow(0, 0, decoded), up_weight(), seen, core_.scale());
    y_T1F.narrow(0, 0, decoded).copy_(y_RND.flatten(1).unsqueeze(1));
  }
  if (decoded == tokens) return y_T1F;  // rows may be those of the step that was captured in a CUDA graph
  for (size_t i = static_cast<size_t>(decoded); i < batch.rows.size(); ++i) {
    const GenerationRow& row = batch.rows[i];
    y_T1F.narrow(0, row.first_token, row.tokens)
        .copy_(attend_row(q_SBND.narrow(0, row.first_token, row.tokens), state, row, context));
  }
  return y_T1F;
}

}  // namespace teratron
