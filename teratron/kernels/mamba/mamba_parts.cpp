#include "teratron/kernels/mamba/mamba_parts.h"

#include <array>

#include <ATen/ATen.h>

namespace teratron::mamba {

at::Tensor as_wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

at::Tensor silu_slope(const at::Tensor& x) {
  const at::Tensor s = x.sigmoid();
  return s * (1.0 + x * (1.0 - s));
}

// --- Convolution ---

at::Tensor cut_chunks(const at::Tensor& x_BS, int64_t chunk) {
  const int64_t tokens = x_BS.size(1), count = (tokens + chunk - 1) / chunk;
  std::vector<int64_t> padding(2 * (x_BS.dim() - 1), 0);
  padding.back() = count * chunk - tokens;
  return at::constant_pad_nd(x_BS, padding).unflatten(1, {count, chunk});
}

ChunkDocuments::ChunkDocuments(const at::Tensor& document_BS, int64_t chunk) {
  const int64_t tokens = document_BS.size(1), count = (tokens + chunk - 1) / chunk;
  const at::Tensor last = document_BS.narrow(1, tokens - 1, 1).expand({-1, count * chunk - tokens});
  const at::Tensor all = at::cat({document_BS, last}, 1).unflatten(1, {count, chunk});
  const at::Tensor end = all.select(2, chunk - 1);
  const at::Tensor before = at::cat({all.select(1, 0).narrow(1, 0, 1), end.narrow(1, 0, count - 1)}, 1);
  within = all.unsqueeze(3).eq(all.unsqueeze(2));
  from_before = all.eq(before.unsqueeze(2));
  to_end = all.eq(end.unsqueeze(2));
  through = end.eq(before);
}

Convolution Convolution::of(const at::Tensor& x_BSC, const at::Tensor& before, const at::Tensor& document_SB,
                            const at::Tensor& weight_C1W, const at::Tensor& bias_C) {
  const int64_t kept = weight_C1W.size(2) - 1;
  const at::Tensor kept_BWC =
      before.defined() ? as_wide(before) : at::zeros({x_BSC.size(0), kept, x_BSC.size(2)}, x_BSC.options());
  return {.input_BSC = at::cat({kept_BWC, x_BSC}, 1),
          .document_BS1 = document_SB.defined() ? document_SB.transpose(0, 1).unsqueeze(2) : at::Tensor(),
          .weight_CW = as_wide(weight_C1W).squeeze(1),
          .bias_C = bias_C.defined() ? as_wide(bias_C) : at::Tensor()};
}

at::Tensor Convolution::within_document(const at::Tensor& x_BSC, int64_t back) const {
  if (!document_BS1.defined() || back == 0) return x_BSC;
  const int64_t length = tokens() - back;
  if (length <= 0) return x_BSC;
  const at::Tensor same =
      document_BS1.narrow(1, back, length).eq(document_BS1.narrow(1, 0, length)).to(x_BSC.scalar_type());
  return at::cat({x_BSC.narrow(1, 0, back), x_BSC.narrow(1, back, length) * same}, 1);
}

at::Tensor Convolution::shifted(int64_t back) const {
  const int64_t first = weight_CW.size(1) - 1 - back;
  return within_document(input_BSC.narrow(1, first, tokens()), back);
}

at::Tensor Convolution::forward() const {
  const int64_t width = weight_CW.size(1);
  at::Tensor y_BSC = shifted(0) * weight_CW.select(1, width - 1);
  for (int64_t back = 1; back < width; ++back)
    y_BSC.addcmul_(shifted(back), weight_CW.select(1, width - 1 - back));
  return bias_C.defined() ? y_BSC.add_(bias_C) : y_BSC;
}

at::Tensor Convolution::after() const {
  const int64_t kept = weight_CW.size(1) - 1;
  return input_BSC.narrow(1, input_BSC.size(1) - kept, kept);
}

Convolution::Gradients Convolution::backward(const at::Tensor& dy_BSC) const {
  const int64_t width = weight_CW.size(1), kept = width - 1;
  at::Tensor dinput_BSC = at::zeros_like(input_BSC);
  std::vector<at::Tensor> dweight(width);
  for (int64_t back = 0; back < width; ++back) {
    const at::Tensor w_C = weight_CW.select(1, kept - back);
    dweight[kept - back] = (dy_BSC * shifted(back)).sum(at::IntArrayRef{0, 1});
    dinput_BSC.narrow(1, kept - back, tokens()).add_(within_document(dy_BSC, back) * w_C);
  }
  return {dinput_BSC.narrow(1, kept, tokens()), at::stack(dweight, 1),
          bias_C.defined() ? dy_BSC.sum(at::IntArrayRef{0, 1}) : at::Tensor()};
}

// --- Scan ---

namespace {

// Names of dimensions: b sequence, c chunk, t and s tokens of a chunk, g group, r head of a group, p and n of
// a state. Tokens that fill up the last chunk have g = u = 0: they leave the state as it is.
struct Chunks {
  explicit Chunks(const Scan& scan);

  at::Tensor cut(const at::Tensor& x_BS) const { return cut_chunks(x_BS, chunk); }
  at::Tensor joined(const at::Tensor& x_bct) const;
  at::Tensor zeros_of_state() const;
  /// Chunk by chunk, the states S before each [b, c, ...]; the last one is that after all.
  at::Tensor pass_states(const at::Tensor& Z_bcgrpn, at::Tensor state) const;
  at::Tensor decayed_values() const { return u * to_end.unsqueeze(-1); }

  int64_t chunk, tokens, count;
  at::Tensor u, B, C;             // bctgrp, bctgn
  at::Tensor decay;               // bcgrts: from s to t, 0 unless s is t or before it in its document
  at::Tensor scores;              // bcgts: C_t . B_s
  at::Tensor mixed;               // bcgrts: scores * decay
  at::Tensor from_start, to_end;  // bctgr: decay from the chunk's start to t, from t to its end
  at::Tensor carry;               // bcgr: through the chunk
};

Chunks::Chunks(const Scan& scan)
    : chunk(std::min(scan.chunk, std::max<int64_t>(scan.g_BSGR.size(1), 1))),
      tokens(scan.g_BSGR.size(1)),
      count((tokens + chunk - 1) / chunk),
      u(cut(scan.u_BSGRP)),
      B(cut(scan.B_BSGN)),
      C(cut(scan.C_BSGN)) {
  const at::Tensor sum = cut(scan.g_BSGR).cumsum(2);  // bctgr
  const at::Tensor causal = at::ones({chunk, chunk}, u.options().dtype(at::kBool)).tril();
  const at::Tensor by_head = sum.permute({0, 1, 3, 4, 2});  // bcgrt
  at::Tensor open = causal;
  from_start = sum.exp();
  to_end = (sum.select(2, chunk - 1).unsqueeze(2) - sum).exp();
  carry = sum.select(2, chunk - 1).exp();
  if (scan.document_BS.defined()) {
    const ChunkDocuments same(scan.document_BS, chunk);
    const auto mask = [&](const at::Tensor& x) { return x.to(u.scalar_type()).unsqueeze(-1).unsqueeze(-1); };
    open = causal.logical_and(same.within).unsqueeze(2).unsqueeze(2);
    from_start = from_start * mask(same.from_before);
    to_end = to_end * mask(same.to_end);
    carry = carry * mask(same.through);
  }
  decay = (by_head.unsqueeze(-1) - by_head.unsqueeze(-2)).masked_fill(open.logical_not(), -INFINITY).exp();
  scores = at::einsum("bctgn,bcsgn->bcgts", {C, B});
  mixed = scores.unsqueeze(3) * decay;
}

at::Tensor Chunks::joined(const at::Tensor& x_bct) const {
  return x_bct.flatten(1, 2).narrow(1, 0, tokens);
}

at::Tensor Chunks::zeros_of_state() const {
  return at::zeros({u.size(0), u.size(3), u.size(4), u.size(5), B.size(4)}, u.options());
}

at::Tensor Chunks::pass_states(const at::Tensor& Z_bcgrpn, at::Tensor state) const {
  std::vector<at::Tensor> states = {std::move(state)};
  for (int64_t c = 0; c < count; ++c)
    states.push_back(states.back() * carry.select(1, c).unsqueeze(-1).unsqueeze(-1) + Z_bcgrpn.select(1, c));
  return at::stack(states, 1);
}

at::Tensor state_or_zeros(const at::Tensor& state, const Chunks& chunks) {
  return state.defined() ? state : chunks.zeros_of_state();
}

// The states before each chunk and after the last.
at::Tensor states_of(const Scan& scan, const Chunks& chunks) {
  const at::Tensor Z = at::einsum("bcsgrp,bcsgn->bcgrpn", {chunks.decayed_values(), chunks.B});
  return chunks.pass_states(Z, state_or_zeros(scan.state_BGRPN, chunks));
}

// What the state before the chunk adds to y.
at::Tensor from_states(const at::Tensor& S_bcgrpn, const Chunks& chunks) {
  return at::einsum("bctgn,bcgrpn->bctgrp", {chunks.C, S_bcgrpn}) * chunks.from_start.unsqueeze(-1);
}

}  // namespace

Scan::Output Scan::forward() const {
  const Chunks n(*this);
  const at::Tensor S = states_of(*this, n);
  const at::Tensor y =
      at::einsum("bcgrts,bcsgrp->bctgrp", {n.mixed, n.u}) + from_states(S.narrow(1, 0, n.count), n);
  return {n.joined(y), S.select(1, n.count)};
}

Scan::Gradients Scan::backward(const at::Tensor& dy_BSGRP, const at::Tensor& dstate_BGRPN) const {
  const Chunks n(*this);
  const at::Tensor dy = n.cut(dy_BSGRP);
  const at::Tensor S = states_of(*this, n).narrow(1, 0, n.count);
  // y from the states before the chunks
  const at::Tensor decayed_dy = dy * n.from_start.unsqueeze(-1);
  at::Tensor dC = at::einsum("bctgrp,bcgrpn->bctgn", {decayed_dy, S});
  const at::Tensor dS = at::einsum("bctgrp,bctgn->bcgrpn", {decayed_dy, n.C});
  at::Tensor dsum = (dy * from_states(S, n)).sum(-1);  // bctgr
  // the states, from the last chunk to the first: dZ_c is the gradient of the state after chunk c
  at::Tensor dstate = state_or_zeros(dstate_BGRPN, n);
  std::vector<at::Tensor> dZs(n.count);
  for (int64_t c = n.count - 1; c >= 0; --c) {
    dZs[c] = dstate;
    dstate = dstate * n.carry.select(1, c).unsqueeze(-1).unsqueeze(-1) + dS.select(1, c);
  }
  const at::Tensor dZ = at::stack(dZs, 1);
  at::Tensor dsum_end = n.carry * (dZ * S).sum(at::IntArrayRef{-2, -1});  // bcgr
  // Z = sum of to_end u B^T
  const at::Tensor W = at::einsum("bcgrpn,bcsgn->bcsgrp", {dZ, n.B}) * n.to_end.unsqueeze(-1);
  at::Tensor du = W, dB = at::einsum("bcsgrp,bcgrpn->bcsgn", {n.decayed_values(), dZ});
  const at::Tensor ends = (n.u * W).sum(-1);
  dsum_end = dsum_end + ends.sum(2);
  dsum = dsum - ends;
  // y within the chunk
  const at::Tensor dmixed = at::einsum("bctgrp,bcsgrp->bcgrts", {dy, n.u});
  du = du + at::einsum("bcgrts,bctgrp->bcsgrp", {n.mixed, dy});
  const at::Tensor dscores = (dmixed * n.decay).sum(3);
  dC = dC + at::einsum("bcgts,bcsgn->bctgn", {dscores, n.B});
  dB = dB + at::einsum("bcgts,bctgn->bcsgn", {dscores, n.C});
  const at::Tensor E = dmixed * n.mixed;
  dsum = dsum + (E.sum(-1) - E.sum(-2)).permute({0, 1, 4, 2, 3});
  dsum.select(2, n.chunk - 1).add_(dsum_end);
  const at::Tensor dg = dsum.flip(2).cumsum(2).flip(2);
  return {n.joined(dg), n.joined(du), n.joined(dB), n.joined(dC), dstate};
}

// --- Gated norm ---

namespace {

struct Rms {
  Rms(const at::Tensor& x, double eps)
      : rstd((x * x).mean(-1, /*keepdim=*/true).add(eps).rsqrt()), normed(x * rstd) {}
  at::Tensor backward(const at::Tensor& d) const {
    return rstd * (d - normed * (d * normed).mean(-1, /*keepdim=*/true));
  }
  at::Tensor rstd, normed;
};

}  // namespace

at::Tensor GatedNorm::forward() const {
  if (gate == MambaGate::none) return y_BSGD;
  const at::Tensor gated = at::silu(z_BSGD);
  if (gate == MambaGate::alone) return y_BSGD * gated;
  if (gate == MambaGate::after_norm) return Rms(y_BSGD, eps).normed * weight_GD * gated;
  return Rms(y_BSGD * gated, eps).normed * weight_GD;
}

GatedNorm::Gradients GatedNorm::backward(const at::Tensor& dout_BSGD) const {
  if (gate == MambaGate::none) return {dout_BSGD, {}, {}};
  const at::Tensor gated = at::silu(z_BSGD), slope = silu_slope(z_BSGD);
  constexpr std::array<int64_t, 2> tokens = {0, 1};
  if (gate == MambaGate::alone) return {dout_BSGD * gated, dout_BSGD * y_BSGD * slope, {}};
  if (gate == MambaGate::after_norm) {
    const Rms rms(y_BSGD, eps);
    const at::Tensor dnormed = dout_BSGD * gated;
    return {rms.backward(dnormed * weight_GD), dout_BSGD * rms.normed * weight_GD * slope,
            (dnormed * rms.normed).sum(tokens)};
  }
  const Rms rms(y_BSGD * gated, eps);
  const at::Tensor dh = rms.backward(dout_BSGD * weight_GD);
  return {dh * gated, dh * y_BSGD * slope, (dout_BSGD * rms.normed).sum(tokens)};
}

}  // namespace teratron::mamba
