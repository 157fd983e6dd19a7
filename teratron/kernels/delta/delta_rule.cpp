#include "teratron/kernels/delta/delta_rule.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/kernels/mamba/mamba_parts.h"

namespace teratron::delta {

namespace {

constexpr double norm_eps = 1e-6;  // added to the squared length of q and k

at::Tensor transposed(const at::Tensor& x) {
  return x.transpose(-2, -1);
}

struct UnitVectors {
  explicit UnitVectors(const at::Tensor& x)
      : inverse_length(x.square().sum(-1, /*keepdim=*/true).add(norm_eps).rsqrt()),
        values(x * inverse_length) {}
  at::Tensor backward(const at::Tensor& d) const {
    return inverse_length * (d - values * (d * values).sum(-1, /*keepdim=*/true));
  }
  at::Tensor inverse_length, values;
};

// All of [b, n, i, ...]: chunk, head, token. The chunks of a sequence follow each other: b is sequence x
// chunk until states are passed on. Tokens that fill up the last chunk have k = beta = g = 0: they change
// nothing.
struct DeltaChunks {
  explicit DeltaChunks(const DeltaRule& rule);

  /// [B, S, heads, ...] -> [B, count, heads, chunk, ...], and back.
  at::Tensor cut(const at::Tensor& x_BS) const {
    return mamba::cut_chunks(x_BS, chunk).transpose(2, 3).contiguous();
  }
  at::Tensor joined(const at::Tensor& x) const {
    return x.transpose(2, 3).flatten(1, 2).narrow(1, 0, tokens);
  }
  /// Sums over the heads of values that share a head of keys.
  at::Tensor over_shared(const at::Tensor& x) const {
    const int64_t heads = keys.values.size(2);
    return x.unflatten(2, {heads, x.size(2) / heads}).sum(3);
  }

  int64_t tokens, chunk, count;
  double scale;
  UnitVectors queries, keys;                  // [.., H, i, K]
  at::Tensor Q, K, V, beta;                   // [.., N, i, K or V or 1]
  at::Tensor decay;                           // e^gamma [.., i, 1]
  at::Tensor to_end;                          // e^(gamma_c - gamma) [.., i, 1]
  at::Tensor carry;                           // e^gamma_c [.., 1, 1]
  at::Tensor Gamma, KK, A, inverse, U, W, P;  // inverse: of I + A; P: lower(Q K^T Gamma) / sqrt(K)
};

DeltaChunks::DeltaChunks(const DeltaRule& rule)
    : tokens(rule.v_BSNV.size(1)),
      chunk(std::min(rule.chunk, tokens)),
      count((tokens + chunk - 1) / chunk),
      scale(1 / std::sqrt(static_cast<double>(rule.q_BSHK.size(-1)))),
      queries(cut(rule.q_BSHK)),
      keys(cut(rule.k_BSHK)),
      V(cut(rule.v_BSNV)),
      beta(cut(rule.beta_BSN).unsqueeze(-1)) {
  const int64_t sharing = V.size(2) / keys.values.size(2);
  Q = queries.values.repeat_interleave(sharing, 2);
  K = keys.values.repeat_interleave(sharing, 2);
  const at::Tensor gamma = cut(rule.g_BSN).cumsum(-1);  // [.., N, i]
  const at::Tensor last = gamma.narrow(-1, chunk - 1, 1);
  decay = gamma.exp();
  to_end = (last - gamma).exp();
  carry = last.exp();
  at::Tensor open = at::ones({chunk, chunk}, gamma.options().dtype(at::kBool)).tril();
  if (rule.document_BS.defined()) {
    const mamba::ChunkDocuments same(rule.document_BS, chunk);
    const auto for_heads = [](const at::Tensor& x) { return x.unsqueeze(2); };
    open = open.logical_and(for_heads(same.within));
    decay = decay * for_heads(same.from_before);
    to_end = to_end * for_heads(same.to_end);
    carry = carry * for_heads(same.through.unsqueeze(-1));
  }
  // Masked before exp: above the diagonal differences may be large.
  Gamma = (gamma.unsqueeze(-1) - gamma.unsqueeze(-2))
              .masked_fill(open.logical_not(), -std::numeric_limits<double>::infinity())
              .exp();
  decay = decay.unsqueeze(-1);
  to_end = to_end.unsqueeze(-1);
  carry = carry.unsqueeze(-1);
  KK = K.matmul(transposed(K));
  A = (beta * KK * Gamma).tril(-1);
  const at::Tensor identity = at::eye(chunk, A.options());
  inverse = at::linalg_solve_triangular(A + identity, identity.expand_as(A), /*upper=*/false, /*left=*/true,
                                        /*unitriangular=*/true);
  U = inverse.matmul(beta * V);
  W = inverse.matmul(beta * decay * K);
  P = scale * Q.matmul(transposed(K)) * Gamma;
}

// S before each chunk [B, count, N, K, V], V' of each, S after the last.
struct States {
  at::Tensor before, corrected, last;
};

States pass_states(const DeltaChunks& n, at::Tensor S) {
  if (!S.defined()) S = at::zeros({n.V.size(0), n.V.size(2), n.K.size(4), n.V.size(4)}, n.V.options());
  std::vector<at::Tensor> before, corrected;
  for (int64_t c = 0; c < n.count; ++c) {
    const auto of = [&](const at::Tensor& x) { return x.select(1, c); };
    before.push_back(S);
    corrected.push_back(of(n.U) - of(n.W).matmul(S));
    S = of(n.carry) * S + transposed(of(n.to_end) * of(n.K)).matmul(corrected.back());
  }
  return {at::stack(before, 1), at::stack(corrected, 1), S};
}

// From the last chunk to the first: gradients of S after each chunk and of V', and of S before the first.
struct StateGradients {
  at::Tensor after, corrected, first;
};

StateGradients pass_gradients(const DeltaChunks& n, const at::Tensor& dY, at::Tensor dS) {
  const at::Tensor within = transposed(n.P).matmul(dY);
  const at::Tensor read = n.scale * transposed(n.decay * n.Q).matmul(dY);
  std::vector<at::Tensor> after(n.count), corrected(n.count);
  for (int64_t c = n.count - 1; c >= 0; --c) {
    const auto of = [&](const at::Tensor& x) { return x.select(1, c); };
    after[c] = dS;
    corrected[c] = of(within) + (of(n.to_end) * of(n.K)).matmul(dS);
    dS = of(n.carry) * dS + of(read) - transposed(of(n.W)).matmul(corrected[c]);
  }
  return {at::stack(after, 1), at::stack(corrected, 1), dS};
}

}  // namespace

DeltaRule::Output DeltaRule::forward() const {
  const DeltaChunks n(*this);
  const States states = pass_states(n, state_BNKV);
  const at::Tensor Y = n.scale * (n.decay * n.Q).matmul(states.before) + n.P.matmul(states.corrected);
  return {n.joined(Y), states.last};
}

DeltaRule::Gradients DeltaRule::backward(const at::Tensor& dy_BSNV, const at::Tensor& dstate_BNKV) const {
  const DeltaChunks n(*this);
  const States states = pass_states(n, state_BNKV);
  const at::Tensor& S = states.before;
  const at::Tensor dY = n.cut(dy_BSNV);
  const StateGradients grads =
      pass_gradients(n, dY, dstate_BNKV.defined() ? dstate_BNKV : at::zeros_like(states.last));
  const at::Tensor& D = grads.after;
  // Y and V' within the chunk
  const at::Tensor dP = dY.matmul(transposed(states.corrected)).tril(), dQK = n.scale * dP * n.Gamma;
  // U and W: X and Y_W are the gradients of beta V and beta e^gamma K
  const at::Tensor X = transposed(n.inverse).matmul(grads.corrected);
  const at::Tensor Y_W = -X.matmul(transposed(S));
  const at::Tensor dA = -(X.matmul(transposed(n.U)) + Y_W.matmul(transposed(n.W))).tril(-1);
  const at::Tensor dKK = n.beta * dA * n.Gamma;
  // S: what is read of it, and written to it
  const at::Tensor read = n.scale * n.decay * dY.matmul(transposed(S));
  const at::Tensor written = n.to_end * states.corrected.matmul(transposed(D));
  const at::Tensor of_W = n.beta * n.decay * Y_W;
  const at::Tensor dQ = read + dQK.matmul(n.K);
  const at::Tensor dK =
      written + transposed(dQK).matmul(n.Q) + dKK.matmul(n.K) + transposed(dKK).matmul(n.K) + of_W;
  const at::Tensor dbeta = (X * n.V).sum(-1) + (n.decay * Y_W * n.K).sum(-1) + (dA * n.Gamma * n.KK).sum(-1);
  const at::Tensor dlogs = dP * n.P + dA * n.A;  // of gamma_i - gamma_j
  const at::Tensor to_end = (n.K * written).sum(-1);
  const at::Tensor dgamma =
      dlogs.sum(-1) - dlogs.sum(-2) + (n.Q * read).sum(-1) + (n.K * of_W).sum(-1) - to_end;
  const at::Tensor carried = (n.carry * D * S).sum(at::IntArrayRef{-2, -1});
  dgamma.select(-1, n.chunk - 1).add_(to_end.sum(-1) + carried);
  const at::Tensor dg = dgamma.flip(-1).cumsum(-1).flip(-1);
  return {.dq_BSHK = n.joined(n.queries.backward(n.over_shared(dQ))),
          .dk_BSHK = n.joined(n.keys.backward(n.over_shared(dK))),
          .dv_BSNV = n.joined(n.beta * X),
          .dg_BSN = n.joined(dg),
          .dbeta_BSN = n.joined(dbeta),
          .dstate_BNKV = grads.first};
}

}  // namespace teratron::delta
