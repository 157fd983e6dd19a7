// Attention in f64 from an explicit mask, which plain loops build from the definition of segments.
#pragma once

#include <random>

#include "teratron/nn/attention/attention.h"
#include "teratron/testing/kernels.h"

namespace teratron {

struct AttentionCase {
  int64_t queries = 0, keys = 0, batch = 1, heads = 2, groups = 2, width = 8;
  Mask mask = Mask::causal;
  int64_t window = 0;
  std::vector<int32_t> cu_seqlens_q = {}, cu_seqlens_k = {};
  int64_t v_width = 0;  // of values; 0: as the others

  int64_t value_width() const { return v_width > 0 ? v_width : width; }
  std::string name() const {
    return fmt::format(
        "{} queries, {} keys, batch {}, {} heads in {} groups of {}/{}, {}, window {}, segments {}/{}",
        queries, keys, batch, heads, groups, width, value_width(), mask == Mask::full ? "full" : "causal",
        window, cu_seqlens_q.size(), cu_seqlens_k.size());
  }
};

/// Inputs, output and gradients. Gradients are in the order of the inputs.
struct AttentionSample {
  at::Tensor q_SBND, k_SBGD, v_SBGD, dy_SBF;
  at::Tensor distance_bias = {};  // undefined: none
};
struct AttentionResult {
  at::Tensor y_SBF, dq, dk, dv;
  at::Tensor distance_bias = {};  // its gradient
};

inline AttentionSample random_sample(const AttentionCase& c, at::ScalarType type) {
  return {randn({c.queries, c.batch, c.heads, c.width}, type),
          randn({c.keys, c.batch, c.groups, c.width}, type),
          randn({c.keys, c.batch, c.groups, c.value_width()}, type),
          randn({c.queries, c.batch, c.heads * c.value_width()}, type)};
}

/// [B, Sq, Sk], true where the query sees the key.
inline at::Tensor visible(const AttentionCase& c) {
  std::vector<int32_t> q = c.cu_seqlens_q, k = c.cu_seqlens_k.empty() ? c.cu_seqlens_q : c.cu_seqlens_k;
  if (q.empty()) {
    for (int64_t b = 0; b <= c.batch; ++b) {
      q.push_back(static_cast<int32_t>(b * c.queries));
      k.push_back(static_cast<int32_t>(b * c.keys));
    }
  }
  at::Tensor result = at::zeros({c.batch, c.queries, c.keys}, at::kBool);
  auto sees = result.accessor<bool, 3>();
  for (size_t s = 0; s + 1 < q.size(); ++s) {
    for (int64_t t = q[s]; t < q[s + 1]; ++t) {
      for (int64_t u = k[s]; u < k[s + 1]; ++u) {
        const int64_t ahead = (u - k[s + 1]) - (t - q[s + 1]);  // of the query's own key
        if (c.mask == Mask::causal && (ahead > 0 || (c.window > 0 && ahead <= -c.window))) continue;
        const int64_t b = t / c.queries;
        sees[b][t - b * c.queries][u - b * c.keys] = true;
      }
    }
  }
  return result;
}

/// [N, Sq + Sk - 1]
inline at::Tensor random_distance_bias(const AttentionCase& c, at::ScalarType type) {
  return randn({c.heads, c.queries + c.keys - 1}, type == at::kDouble ? at::kDouble : at::kFloat);
}

/// [N, Sq, Sk]: of query i and key j, column j - i + Sq - 1.
inline at::Tensor spread_bias(const AttentionCase& c, const at::Tensor& distance_bias) {
  const auto i64 = distance_bias.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor column = at::arange(c.keys, i64) - at::arange(c.queries, i64).unsqueeze(1) + c.queries - 1;
  return distance_bias.index_select(1, column.flatten()).unflatten(1, {c.queries, c.keys});
}

inline AttentionResult reference(const AttentionCase& c, const AttentionSample& sample, double scale) {
  const at::Tensor q = leaf(sample.q_SBND), k = leaf(sample.k_SBGD), v = leaf(sample.v_SBGD);
  const auto heads_of = [&](const at::Tensor& x) { return x.repeat_interleave(c.heads / x.size(2), 2); };
  const at::Tensor bias = sample.distance_bias.defined() ? leaf(sample.distance_bias) : at::Tensor();
  at::Tensor scores = at::einsum("ibnd,jbnd->bnij", {q, heads_of(k)}) * scale;
  if (bias.defined()) scores = scores + spread_bias(c, bias);
  const at::Tensor weights = scores.exp() * visible(c).unsqueeze(1).to(scores.device());
  const at::Tensor sum = weights.sum(-1, true);
  const at::Tensor y =
      at::einsum("bnij,jbnd->ibnd", {weights / sum.masked_fill(sum == 0, 1.0), heads_of(v)}).flatten(2);
  y.backward(f64(sample.dy_SBF));
  return {y.detach(), q.grad(), k.grad(), v.grad(), bias.defined() ? bias.grad() : at::Tensor()};
}

inline AttentionRequest request_of(const AttentionCase& c, const AttentionSample& sample, double scale) {
  const auto bounds = [&](const std::vector<int32_t>& cu_seqlens) {
    return cu_seqlens.empty() ? at::Tensor() : at::tensor(cu_seqlens, at::kInt).to(sample.q_SBND.device());
  };
  return {.q_SBND = sample.q_SBND,
          .k_SBGD = sample.k_SBGD,
          .v_SBGD = sample.v_SBGD,
          .scale = scale,
          .mask = c.mask,
          .segments = {bounds(c.cu_seqlens_q), bounds(c.cu_seqlens_k)},
          .window = c.window,
          .distance_bias = sample.distance_bias};
}

/// Output and gradients of `request` with fresh leaves. Queries, keys and values are views of a wider tensor,
/// as those of a projection.
inline AttentionResult run_attention(AttentionRequest request, const at::Tensor& dy_SBF) {
  const auto view = [](const at::Tensor& x) {
    return at::cat({x, x}, 2).narrow(2, 0, x.size(2)).detach().requires_grad_();
  };
  request.q_SBND = view(request.q_SBND);
  request.k_SBGD = view(request.k_SBGD);
  request.v_SBGD = view(request.v_SBGD);
  at::Tensor& bias = request.distance_bias;
  if (bias.defined()) bias = bias.detach().requires_grad_();
  const at::Tensor y = attention(request);
  y.backward(dy_SBF);
  return {y.detach(), request.q_SBND.grad(), request.k_SBGD.grad(), request.v_SBGD.grad(),
          bias.defined() ? bias.grad() : at::Tensor()};
}

inline void expect_result(const AttentionResult& actual, const AttentionResult& expected, double allowed) {
  EXPECT_LT(relative_error(actual.y_SBF, expected.y_SBF), allowed) << "output";
  EXPECT_LT(relative_error(actual.dq, expected.dq), allowed) << "dq";
  EXPECT_LT(relative_error(actual.dk, expected.dk), allowed) << "dk";
  EXPECT_LT(relative_error(actual.dv, expected.dv), allowed) << "dv";
  ASSERT_EQ(actual.distance_bias.defined(), expected.distance_bias.defined());
  if (!expected.distance_bias.defined()) return;
  EXPECT_LT(relative_error(actual.distance_bias, expected.distance_bias), allowed) << "d(distance_bias)";
}

/// Random bounds of `per_sample` segments, some of them empty, in each of `batch` samples of `length` tokens;
/// then `padding` empty ones.
inline std::vector<int32_t> random_bounds(std::mt19937& random, int64_t batch, int64_t length,
                                          std::array<int64_t, 2> per_sample_and_padding) {
  const auto [per_sample, padding] = per_sample_and_padding;
  std::vector<int32_t> bounds{0};
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<int64_t> inner(per_sample - 1);
    for (int64_t& bound : inner) bound = std::uniform_int_distribution<int64_t>(0, length)(random);
    std::sort(inner.begin(), inner.end());
    inner.push_back(length);
    for (const int64_t bound : inner) bounds.push_back(static_cast<int32_t>(b * length + bound));
  }
  bounds.insert(bounds.end(), padding, static_cast<int32_t>(batch * length));
  return bounds;
}

inline std::vector<AttentionCase> whole_sample_cases(int64_t width) {
  return {
      {.queries = 70, .keys = 70, .batch = 2, .width = width},
      {.queries = 70, .keys = 70, .batch = 2, .width = width, .mask = Mask::full},
      {.queries = 33, .keys = 90, .batch = 2, .width = width, .mask = Mask::full},
      {.queries = 90, .keys = 33, .batch = 2, .heads = 4, .groups = 2, .width = width, .mask = Mask::full},
      {.queries = 20, .keys = 90, .batch = 2, .width = width},
      {.queries = 90, .keys = 20, .batch = 2, .width = width},
      {.queries = 200, .keys = 200, .batch = 2, .width = width, .window = 9},
      {.queries = 600, .keys = 600, .width = width, .window = 130},
      {.queries = 150, .keys = 200, .batch = 2, .width = width, .window = 70}};
}

/// Masks of every kind: whole samples, documents, padded samples, cross-attention, windows, grouped heads.
inline std::vector<AttentionCase> attention_cases(int64_t width) {
  std::mt19937 random(7);
  const auto bounds = [&](int64_t batch, int64_t length, int64_t per_sample, int64_t padding) {
    return random_bounds(random, batch, length, {per_sample, padding});
  };
  std::vector<AttentionCase> cases = whole_sample_cases(width);
  for (const Mask mask : {Mask::causal, Mask::full}) {
    // One sample and several; bounds repeated at the end; grouped heads.
    cases.push_back(
        {.queries = 300, .keys = 300, .width = width, .mask = mask, .cu_seqlens_q = bounds(1, 300, 6, 5)});
    cases.push_back({.queries = 65,
                     .keys = 65,
                     .batch = 3,
                     .heads = 6,
                     .groups = 2,
                     .width = width,
                     .mask = mask,
                     .cu_seqlens_q = bounds(3, 65, 4, 20)});
    // Each sample's padding is a segment.
    cases.push_back({.queries = 48,
                     .keys = 48,
                     .batch = 3,
                     .heads = 4,
                     .groups = 1,
                     .width = width,
                     .mask = mask,
                     .cu_seqlens_q = {0, 40, 48, 96, 96, 97, 144}});
    // Other keys, with padding on both sides; the third pair of segments has no keys, the fourth no queries.
    cases.push_back({.queries = 24,
                     .keys = 40,
                     .batch = 2,
                     .heads = 4,
                     .groups = 2,
                     .width = width,
                     .mask = mask,
                     .cu_seqlens_q = {0, 20, 24, 30, 30, 48, 48},
                     .cu_seqlens_k = {0, 33, 40, 40, 60, 80, 80}});
    cases.push_back({.queries = 50,
                     .keys = 70,
                     .batch = 2,
                     .width = width,
                     .mask = mask,
                     .cu_seqlens_q = bounds(2, 50, 5, 3),
                     .cu_seqlens_k = bounds(2, 70, 5, 3)});
  }
  cases.push_back({.queries = 400,
                   .keys = 400,
                   .batch = 2,
                   .width = width,
                   .window = 70,
                   .cu_seqlens_q = bounds(2, 400, 3, 2)});
  return cases;
}

}  // namespace teratron
