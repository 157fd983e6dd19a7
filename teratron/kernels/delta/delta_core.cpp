#include "teratron/kernels/delta/delta_core.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/delta/delta_rule.h"
#include "teratron/kernels/delta/fused_delta.h"
#include "teratron/kernels/mamba/mamba_parts.h"

namespace teratron {

using delta::DeltaRule;
using mamba::as_wide;
using mamba::Convolution;
using mamba::GatedNorm;

namespace {

// The columns of the input, sequences first and wide.
struct DeltaColumns {
  DeltaColumns(const at::Tensor& qkvzba_SB, const DeltaOptions& n) {
    const std::vector<at::Tensor> all =
        as_wide(qkvzba_SB.transpose(0, 1))
            .split_with_sizes({n.channels(), n.values(), n.value_heads, n.value_heads}, 2);
    qkv = all[0];
    z = all[1];
    b = all[2];
    a = all[3];
  }
  at::Tensor qkv, z, b, a;
};

// All that forward computes, for backward.
struct DeltaCore {
  DeltaCore(const DeltaInput& input, const DeltaWeights& w, const DeltaOptions& n)
      : options(n),
        weights(w),
        columns(input.qkvzba_SB, n),
        conv(Convolution::of(columns.qkv, input.before.conv, input.document_SB, w.conv_weight, {})),
        conv_BSC(conv.forward()),
        beta_BSN(columns.b.sigmoid()),
        raw_BSN(columns.a + as_wide(w.dt_bias)),
        rate_N(as_wide(w.A_log).exp()) {
    const std::vector<at::Tensor> qkv =
        at::silu(conv_BSC).split_with_sizes({n.keys(), n.keys(), n.values()}, 2);
    rule = {.q_BSHK = qkv[0].unflatten(2, {n.key_heads, n.key_dim}),
            .k_BSHK = qkv[1].unflatten(2, {n.key_heads, n.key_dim}),
            .v_BSNV = by_head(qkv[2]),
            .g_BSN = -rate_N * at::softplus(raw_BSN),
            .beta_BSN = n.beta_scale * beta_BSN,
            .document_BS = input.document_SB.defined() ? input.document_SB.transpose(0, 1) : at::Tensor(),
            .state_BNKV = input.before.rule.defined() ? as_wide(input.before.rule) : at::Tensor(),
            .chunk = n.chunk};
  }

  at::Tensor by_head(const at::Tensor& x) const {
    return x.unflatten(2, {options.value_heads, options.value_dim});
  }
  GatedNorm norm(const at::Tensor& y_BSNV) const {
    return {.gate = MambaGate::after_norm,
            .y_BSGD = y_BSNV,
            .z_BSGD = by_head(columns.z),
            .weight_GD = as_wide(weights.norm_weight),  // shared by all heads
            .eps = options.norm_eps};
  }

  const DeltaOptions& options;
  const DeltaWeights& weights;
  DeltaColumns columns;
  Convolution conv;
  at::Tensor conv_BSC, beta_BSN, raw_BSN, rate_N;
  DeltaRule rule;
};

}  // namespace

DeltaOutput delta_forward(const DeltaInput& input, const DeltaWeights& weights, const DeltaOptions& options) {
  TERATRON_ASSERT(input.qkvzba_SB.size(2) == options.width(), "{} columns, not {}", input.qkvzba_SB.size(2),
                  options.width());
  if (delta::fused_delta_supports(input, weights, options))
    return delta::fused_delta_forward(input, weights, options);
  const DeltaCore core(input, weights, options);
  const DeltaRule::Output out = core.rule.forward();
  const at::Tensor y_BS = core.norm(out.y_BSNV).forward().flatten(2);
  return {y_BS.transpose(0, 1).to(input.qkvzba_SB.scalar_type()).contiguous(),
          {core.conv.after(), out.state_BNKV}};
}

DeltaGradients delta_backward(const at::Tensor& dy_SB, const at::Tensor& drule, const DeltaInput& input,
                              const DeltaWeights& weights, const DeltaOptions& options) {
  if (delta::fused_delta_supports(input, weights, options))
    return delta::fused_delta_backward(dy_SB, drule, input, weights, options);
  const DeltaCore core(input, weights, options);
  const GatedNorm::Gradients norm =
      core.norm(core.rule.forward().y_BSNV).backward(core.by_head(as_wide(dy_SB.transpose(0, 1))));
  const DeltaRule::Gradients rule =
      core.rule.backward(norm.dy_BSGD, drule.defined() ? as_wide(drule) : drule);
  const at::Tensor dqkv =
      at::cat({rule.dq_BSHK.flatten(2), rule.dk_BSHK.flatten(2), rule.dv_BSNV.flatten(2)}, 2);
  const Convolution::Gradients conv = core.conv.backward(dqkv * mamba::silu_slope(core.conv_BSC));
  const at::Tensor db = options.beta_scale * rule.dbeta_BSN * core.beta_BSN * (1 - core.beta_BSN);
  const at::Tensor da = -core.rate_N * rule.dg_BSN * core.raw_BSN.sigmoid();
  const at::Tensor all_BS = at::cat({conv.dinput_BSC, norm.dz_BSGD.flatten(2), db, da}, 2);
  const std::vector<int64_t> tokens = {0, 1};
  return {.dqkvzba_SB = all_BS.transpose(0, 1).to(input.qkvzba_SB.scalar_type()).contiguous(),
          .weights = {.conv_weight = conv.dweight_CW.unsqueeze(1),
                      .dt_bias = da.sum(tokens),
                      .A_log = (rule.dg_BSN * core.rule.g_BSN).sum(tokens),
                      .norm_weight = norm.dweight_GD.sum(0)},
          .drule = rule.dstate_BNKV};
}

at::Tensor delta_step(const at::Tensor& qkvzba_R, const StateTables& tables, const DeltaWeights& weights,
                      const DeltaOptions& options) {
  if (delta::fused_delta_step_supports(qkvzba_R, tables, weights, options))
    return delta::fused_delta_step(qkvzba_R, tables, weights, options);
  const auto& [conv, rule, rows] = tables;
  const DeltaOutput out = delta_forward(
      {.qkvzba_SB = qkvzba_R.unsqueeze(0), .before = {rows.read(conv), rows.read(rule)}}, weights, options);
  rows.write(conv, out.after.conv);
  rows.write(rule, out.after.rule);
  return out.y_SB.squeeze(0);
}

}  // namespace teratron
