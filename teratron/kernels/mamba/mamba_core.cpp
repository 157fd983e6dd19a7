#include "teratron/kernels/mamba/mamba_core.h"

#include <array>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/mamba/fused_mamba.h"
#include "teratron/kernels/mamba/mamba_parts.h"

namespace teratron {

using namespace mamba;

namespace {

// The columns of the input, sequences first and wide.
struct Columns {
  Columns(const at::Tensor& zxbcdt_SB, const MambaOptions& options)
      : all_BS(as_wide(zxbcdt_SB.transpose(0, 1))) {
    const int64_t d = options.gate == MambaGate::none ? 0 : options.inner();
    if (d > 0) z = all_BS.narrow(2, 0, d);
    xbc = all_BS.narrow(2, d, options.channels());
    dt = all_BS.narrow(2, d + options.channels(), options.heads);
  }
  at::Tensor all_BS, z, xbc, dt;  // z is undefined if there is none
};

// The time steps dt and their slope by what softplus is applied to.
struct TimeSteps {
  TimeSteps(const at::Tensor& dt_BSH, const MambaWeights& weights, const MambaOptions& options)
      : raw(dt_BSH + weights.dt_bias),
        soft(at::softplus(raw)),
        clamps(options.time_step_min > 0.0 || std::isfinite(options.time_step_max)),
        least(options.time_step_min),
        most(options.time_step_max) {}
  at::Tensor value() const { return clamps ? soft.clamp(least, most) : soft; }
  at::Tensor slope() const {
    const at::Tensor slope = raw.sigmoid();
    return clamps ? slope * soft.ge(least).logical_and(soft.le(most)).to(slope.scalar_type()) : slope;
  }
  at::Tensor raw, soft;
  bool clamps;
  double least, most;
};

// All that forward computes, for backward.
struct Core {
  Core(const MambaInput& input, const MambaWeights& w, const MambaOptions& options);

  at::Tensor by_group(const at::Tensor& x) const {  // [..., d] -> [..., G, R, P]
    return x.unflatten(-1, {options.groups, options.heads / options.groups, options.head_dim});
  }
  at::Tensor by_head(const at::Tensor& x_H) const {  // [..., H] -> [..., G, R]
    return x_H.unflatten(-1, {options.groups, options.heads / options.groups});
  }
  at::Tensor joined_groups(const at::Tensor& x) const {  // [..., G, D] -> [B, S, d]
    return x.flatten(2);
  }
  GatedNorm norm(const at::Tensor& y_BSGRP) const;

  const MambaOptions& options;
  const MambaWeights& weights;
  Columns columns;
  Convolution conv;
  at::Tensor conv_BSC;
  TimeSteps steps;
  at::Tensor dt_BSGR, A_GR, D_GR1;
  at::Tensor x_BSGRP;
  Scan scan;
};

Core::Core(const MambaInput& input, const MambaWeights& w, const MambaOptions& own)
    : options(own),
      weights(w),
      columns(input.zxbcdt_SB, own),
      conv(Convolution::of(columns.xbc, input.before.conv, input.document_SB, w.conv_weight, w.conv_bias)),
      conv_BSC(conv.forward()),
      steps(columns.dt, w, own),
      dt_BSGR(by_head(steps.value())),
      A_GR(by_head(w.A_log.exp().neg())),
      D_GR1(by_head(w.D).unsqueeze(-1)) {
  const int64_t d = own.inner(), gn = own.groups * own.state;
  const std::vector<at::Tensor> xbc = at::silu(conv_BSC).split_with_sizes({d, gn, gn}, 2);
  const auto states = [&](const at::Tensor& x) { return x.unflatten(2, {own.groups, own.state}); };
  x_BSGRP = by_group(xbc[0]);
  scan = {.g_BSGR = dt_BSGR * A_GR,
          .u_BSGRP = x_BSGRP * dt_BSGR.unsqueeze(-1),
          .B_BSGN = states(xbc[1]),
          .C_BSGN = states(xbc[2]),
          .document_BS = input.document_SB.defined() ? input.document_SB.transpose(0, 1) : at::Tensor(),
          .chunk = own.chunk};
  if (input.before.ssm.defined())
    scan.state_BGRPN = as_wide(input.before.ssm).unflatten(1, {own.groups, own.heads / own.groups});
}

// [..., d] -> [..., G, d / G]; undefined stays so.
at::Tensor cut_groups(const at::Tensor& x, const MambaOptions& options) {
  return x.defined() ? as_wide(x).unflatten(-1, {options.groups, -1}) : x;
}

GatedNorm Core::norm(const at::Tensor& y_BSGRP) const {
  return {.gate = options.gate,
          .y_BSGD = y_BSGRP.flatten(3),
          .z_BSGD = cut_groups(columns.z, options),
          .weight_GD = cut_groups(weights.norm_weight, options),
          .eps = options.norm_eps};
}

// The norm of tokens in any order.
GatedNorm norm_of(const at::Tensor& y_SB, const at::Tensor& z_SB, const at::Tensor& weight,
                  const MambaOptions& options) {
  return {.gate = options.gate,
          .y_BSGD = cut_groups(y_SB, options),
          .z_BSGD = cut_groups(z_SB, options),
          .weight_GD = cut_groups(weight, options),
          .eps = options.norm_eps};
}

}  // namespace

MambaOutput mamba_forward(const MambaInput& input, const MambaWeights& weights, const MambaOptions& options) {
  TERATRON_ASSERT(input.zxbcdt_SB.size(2) == options.width(), "{} columns, not {}", input.zxbcdt_SB.size(2),
                  options.width());
  if (fused_mamba_supports(input, weights, options)) return fused_mamba_forward(input, weights, options);
  const Core core(input, weights, options);
  const Scan::Output scanned = core.scan.forward();
  const at::Tensor y_BSGRP = scanned.y_BSGRP + core.x_BSGRP * core.D_GR1;
  const at::Tensor out_BSD = core.joined_groups(core.norm(y_BSGRP).forward());
  return {out_BSD.transpose(0, 1).to(input.zxbcdt_SB.scalar_type()).contiguous(),
          {core.conv.after(), scanned.state_BGRPN.flatten(1, 2)}};
}

MambaGradients mamba_backward(const at::Tensor& dy_SB, const at::Tensor& dssm, const MambaInput& input,
                              const MambaWeights& weights, const MambaOptions& options) {
  if (fused_mamba_supports(input, weights, options))
    return fused_mamba_backward(dy_SB, dssm, input, weights, options);
  const Core core(input, weights, options);
  constexpr std::array<int64_t, 2> tokens = {0, 1};
  const at::Tensor y_BSGRP = core.scan.forward().y_BSGRP + core.x_BSGRP * core.D_GR1;
  const GatedNorm::Gradients norm =
      core.norm(y_BSGRP).backward(as_wide(dy_SB.transpose(0, 1)).unflatten(2, {options.groups, -1}));
  const at::Tensor dy = core.by_group(core.joined_groups(norm.dy_BSGD));
  const at::Tensor dstate =
      dssm.defined() ? as_wide(dssm).unflatten(1, {options.groups, options.heads / options.groups}) : dssm;
  const Scan::Gradients scan = core.scan.backward(dy, dstate);
  const at::Tensor dx = dy * core.D_GR1 + scan.du_BSGRP * core.dt_BSGR.unsqueeze(-1);
  const at::Tensor ddt = ((scan.du_BSGRP * core.x_BSGRP).sum(-1) + scan.dg_BSGR * core.A_GR).flatten(2);
  const at::Tensor draw_BSH = ddt * core.steps.slope();
  const at::Tensor dxbc = at::cat({dx.flatten(2), scan.dB_BSGN.flatten(2), scan.dC_BSGN.flatten(2)}, 2);
  const Convolution::Gradients conv = core.conv.backward(dxbc * silu_slope(core.conv_BSC));
  std::vector<at::Tensor> columns = {conv.dinput_BSC, draw_BSH};
  if (norm.dz_BSGD.defined()) columns.insert(columns.begin(), core.joined_groups(norm.dz_BSGD));
  const at::Tensor dall_BS = at::cat(columns, 2);
  MambaGradients result{
      .dzxbcdt_SB = dall_BS.transpose(0, 1).to(input.zxbcdt_SB.scalar_type()).contiguous(),
      .weights = {.conv_weight = conv.dweight_CW.unsqueeze(1),
                  .conv_bias = conv.dbias_C,
                  .dt_bias = draw_BSH.sum(tokens),
                  .A_log = ((scan.dg_BSGR * core.dt_BSGR).sum(tokens) * core.A_GR).flatten(),
                  .D = (dy * core.x_BSGRP).sum(at::IntArrayRef{0, 1, 4}).flatten()},
      .dssm = scan.dstate_BGRPN.flatten(1, 2)};
  if (norm.dweight_GD.defined()) result.weights.norm_weight = norm.dweight_GD.flatten();
  return result;
}

at::Tensor mamba_gated_norm(const at::Tensor& y_SB, const at::Tensor& z_SB, const at::Tensor& weight,
                            const MambaOptions& options) {
  return norm_of(y_SB, z_SB, weight, options).forward().flatten(2).to(y_SB.scalar_type());
}

MambaNormGradients mamba_gated_norm_backward(const at::Tensor& dout_SB, const at::Tensor& y_SB,
                                             const at::Tensor& z_SB, const at::Tensor& weight,
                                             const MambaOptions& options) {
  const GatedNorm::Gradients g = norm_of(y_SB, z_SB, weight, options).backward(cut_groups(dout_SB, options));
  return {g.dy_BSGD.flatten(2).to(y_SB.scalar_type()), g.dz_BSGD.flatten(2).to(z_SB.scalar_type()),
          g.dweight_GD.defined() ? g.dweight_GD.flatten() : at::Tensor()};
}

MambaOutput mamba_step(const at::Tensor& zxbcdt_R, const MambaStates& before, const MambaWeights& weights,
                       const MambaOptions& options) {
  MambaInput input{.zxbcdt_SB = zxbcdt_R.unsqueeze(0), .before = before};
  const Core core(input, weights, options);
  const auto now = [](const at::Tensor& x) { return x.select(1, 0); };
  const Scan& scan = core.scan;
  const at::Tensor added = now(scan.u_BSGRP).unsqueeze(-1) * now(scan.B_BSGN).unsqueeze(2).unsqueeze(2);
  const at::Tensor state =
      at::addcmul(added, scan.state_BGRPN, now(scan.g_BSGR).exp().unsqueeze(-1).unsqueeze(-1));
  const at::Tensor y = at::matmul(state, now(scan.C_BSGN).unsqueeze(2).unsqueeze(-1)).squeeze(-1);
  const at::Tensor out = core.norm((y + now(core.x_BSGRP) * core.D_GR1).unsqueeze(1)).forward();
  return {core.joined_groups(out).squeeze(1).to(zxbcdt_R.scalar_type()),
          {core.conv.after(), state.flatten(1, 2)}};
}

at::Tensor mamba_step(const at::Tensor& zxbcdt_R, const StateTables& tables, const MambaWeights& weights,
                      const MambaOptions& options) {
  if (fused_mamba_step_supports(zxbcdt_R, tables, weights, options))
    return fused_mamba_step(zxbcdt_R, tables, weights, options);
  const auto& [conv, ssm, rows] = tables;
  const MambaStates before{rows.read(conv), rows.read(ssm)};
  const MambaOutput out = mamba_step(zxbcdt_R, before, weights, options);
  rows.write(conv, out.after.conv);
  rows.write(ssm, out.after.ssm);
  return out.y_SB;
}

}  // namespace teratron
