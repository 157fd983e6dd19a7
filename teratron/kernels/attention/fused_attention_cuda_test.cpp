// fused_attention.h against autograd in f64 on the CPU
#include "teratron/kernels/attention/fused_attention.h"
#include "teratron/kernels/attention/key_range.h"
#include "teratron/kernels/attention/score_dropout.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

struct FusedCase {
  int64_t batch = 2, heads = 2, groups = 2, queries = 0, keys = 0, width = 64;
  bool causal = false;
  int64_t window = 0;
  std::vector<int32_t> cu_seqlens_q = {}, cu_seqlens_k = {};
  double dropout = 0;
  bool bias = false;

  std::string name() const {
    return fmt::format(
        "{} x {} of {} heads in {} groups of {}, batch {}, causal {}, window {}, segments {}, "
        "dropout {}, bias {}",
        queries, keys, heads, groups, width, batch, causal, window, cu_seqlens_q.size(), dropout, bias);
  }
};

/// Queries, keys and values as views of a projection; gradients likewise.
struct FusedSample {
  at::Tensor q, k, v, dy, bias, rows;
};

at::Tensor view_of_wider(const at::Tensor& x) {
  return at::cat({x, x}, 2).narrow(2, 0, x.size(2));
}

FusedSample sample_of(const FusedCase& c, at::ScalarType type) {
  const auto heads = [&](int64_t length, int64_t count) {
    return view_of_wider(randn({length, c.batch, count, c.width}, type));
  };
  FusedSample sample{.q = heads(c.queries, c.heads),
                     .k = heads(c.keys, c.groups),
                     .v = heads(c.keys, c.groups),
                     .dy = randn({c.queries, c.batch, c.heads, c.width}, type),
                     .bias = {},
                     .rows = {}};
  if (c.bias) sample.bias = randn({c.heads, c.queries + c.keys - 1});
  sample.rows = at::randint(int64_t{1} << 40, {c.batch * c.heads * c.queries}, at::kLong);
  return sample;
}

Dropout dropout_of(const FusedCase& c, const FusedSample& sample) {
  return {.p = c.dropout, .key = {uint64_t{5} << 32 | 17, 23}, .where = {.rows = sample.rows}};
}

/// [B, 1, Sq, Sk] by key_range(), which kernels_test compares with the definition.
at::Tensor visible_keys(const FusedCase& c) {
  const std::vector<int32_t>& k = c.cu_seqlens_k.empty() ? c.cu_seqlens_q : c.cu_seqlens_k;
  const AttentionMask mask{.queries = static_cast<int>(c.queries),
                           .keys = static_cast<int>(c.keys),
                           .causal = c.causal,
                           .window = static_cast<int>(c.window),
                           .cu_seqlens_q = c.cu_seqlens_q.data(),
                           .cu_seqlens_k = k.data(),
                           .segments = std::max(0, static_cast<int>(c.cu_seqlens_q.size()) - 1)};
  at::Tensor seen = at::zeros({c.batch, 1, c.queries, c.keys}, at::kBool);
  for (int b = 0; b < c.batch; ++b) {
    for (int i = 0; i < c.queries; ++i) {
      const KeyRange range = key_range(mask, b, i);
      seen[b][0][i].narrow(0, range.begin, range.end - range.begin).fill_(true);
    }
  }
  return seen;
}

struct FusedResult {
  at::Tensor y, dq, dk, dv, dbias;
};

FusedResult expected_result(const FusedCase& c, const FusedSample& sample, double scale) {
  const at::Tensor q = leaf(sample.q), k = leaf(sample.k), v = leaf(sample.v);
  const auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(c.heads / c.groups, 2); };
  at::Tensor scores = at::einsum("ibnd,jbnd->bnij", {q, repeated(k)}) * scale, bias;
  if (c.bias) {
    bias = leaf(sample.bias);
    const at::Tensor distance =
        at::arange(c.keys).unsqueeze(0) - at::arange(c.queries).unsqueeze(1) + c.queries - 1;
    scores = scores + bias.index_select(1, distance.flatten()).view({c.heads, c.queries, c.keys});
  }
  const at::Tensor weights = scores.exp() * visible_keys(c), sum = weights.sum(-1, true);
  at::Tensor p = weights / sum.masked_fill(sum == 0, 1.0);
  if (c.dropout > 0) {
    p = p * score_dropout_cpu(at::ones(p.sizes(), at::kDouble), dropout_of(c, sample));
  }
  const at::Tensor y = at::einsum("bnij,jbnd->ibnd", {p, repeated(v)});
  y.backward(f64(sample.dy));
  return {y.detach(), q.grad(), k.grad(), v.grad(), c.bias ? bias.grad() : at::Tensor()};
}

FusedResult run_fused(const FusedCase& c, const FusedSample& sample, double scale) {
  // Copies keep strides. NaN must be overwritten.
  const auto there = [](const at::Tensor& x) { return view_of_wider(gpu(x.contiguous())); };
  const auto bounds = [](const std::vector<int32_t>& cu_seqlens) {
    return cu_seqlens.empty() ? at::Tensor() : gpu(at::tensor(cu_seqlens, at::kInt));
  };
  const FusedAttentionInputs inputs{there(sample.q), there(sample.k), there(sample.v), gpu(sample.bias)};
  Dropout dropout = dropout_of(c, sample);
  dropout.where.rows = gpu(dropout.where.rows);
  const at::Tensor cu_q = bounds(c.cu_seqlens_q);
  const FusedAttentionOptions options{.scale = scale,
                                      .causal = c.causal,
                                      .window = c.window,
                                      .cu_seqlens_q = cu_q,
                                      .cu_seqlens_k = c.cu_seqlens_k.empty() ? cu_q : bounds(c.cu_seqlens_k),
                                      .dropout = dropout};
  EXPECT_TRUE(fused_attention_supports(inputs));
  const FusedAttentionOutput output = fused_attention(inputs, options);
  const auto blank = [](const at::Tensor& x) { return view_of_wider(at::full_like(x, std::nan(""))); };
  const FusedAttentionGradients gradients{blank(inputs.q_SBND), blank(inputs.k_SBGD), blank(inputs.v_SBGD),
                                          c.bias ? at::full_like(inputs.bias, std::nan("")) : at::Tensor()};
  fused_attention_backward(inputs, options, output, gpu(sample.dy), gradients);
  return {output.y_SBND, gradients.q_SBND, gradients.k_SBGD, gradients.v_SBGD, gradients.bias};
}

// Relative error of dq, dk and the bias. A query that sees one key has no gradient, only the rounding of y:
// there, relative to dy.
double gradient_error(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& dy) {
  const double size = f64(expected).norm().item<double>(), of_dy = f64(dy).norm().item<double>();
  const double error = (f64(actual.cpu()) - f64(expected)).norm().item<double>();
  return error / (size > 1e-6 * of_dy ? size : of_dy);
}

void check_fused(const FusedCase& c, at::ScalarType type) {
  SCOPED_TRACE(fmt::format("{}: {}", at::toString(type), c.name()));
  const FusedSample sample = sample_of(c, type);
  const double scale = 1 / std::sqrt(static_cast<double>(c.width)), allowed = 2 * tolerance(type);
  const FusedResult actual = run_fused(c, sample, scale), expected = expected_result(c, sample, scale);
  EXPECT_LT(relative_error(actual.y, expected.y), allowed) << "y";
  EXPECT_LT(gradient_error(actual.dq, expected.dq, sample.dy), allowed) << "dq";
  EXPECT_LT(gradient_error(actual.dk, expected.dk, sample.dy), allowed) << "dk";
  EXPECT_LT(relative_error(actual.dv, expected.dv), allowed) << "dv";
  if (c.bias) {
    EXPECT_LT(gradient_error(actual.dbias, expected.dbias, sample.dy), allowed) << "dbias";
  }
  const FusedResult again = run_fused(c, sample, scale);
  EXPECT_TRUE(same_bits(actual.y, again.y) && same_bits(actual.dq, again.dq) &&
              same_bits(actual.dk, again.dk) && same_bits(actual.dv, again.dv));
  if (c.bias) {
    EXPECT_TRUE(same_bits(actual.dbias, again.dbias));
  }
}

class FusedAttentionGpu : public Gpu {};

TEST_F(FusedAttentionGpu, MatchesAutograd) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {64, 128, 40, 96, 8}) {
      for (const auto& [dropout, bias] : {std::pair{0.0, false}, {0.1, false}, {0.3, true}, {0.0, true}}) {
        for (FusedCase c : {
                 FusedCase{.heads = 4, .groups = 2, .queries = 200, .keys = 200, .causal = true},
                 {.queries = 130, .keys = 333},
                 {.batch = 1, .heads = 3, .groups = 1, .queries = 333, .keys = 90, .causal = true},
                 {.queries = 33, .keys = 190, .causal = true},
                 {.batch = 1, .queries = 400, .keys = 400, .causal = true, .window = 130},
                 {.queries = 1, .keys = 1},
             }) {
          c.width = width;
          c.dropout = dropout;
          c.bias = bias;
          check_fused(c, type);
        }
      }
    }
  }
}

TEST_F(FusedAttentionGpu, Segments) {
  for (const int64_t width : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const bool bias : {false, true}) {
        for (FusedCase c : {
                 // Empty segments in between and at the end.
                 FusedCase{.batch = 3,
                           .heads = 2,
                           .groups = 1,
                           .queries = 100,
                           .keys = 100,
                           .cu_seqlens_q = {0, 40, 100, 100, 130, 177, 200, 287, 300, 300, 300}},
                 // Padding on both sides; a pair without keys, one without queries.
                 {.queries = 24,
                  .keys = 140,
                  .cu_seqlens_q = {0, 20, 24, 30, 30, 48, 48},
                  .cu_seqlens_k = {0, 133, 140, 140, 160, 280, 280}},
             }) {
          c.width = width;
          c.causal = causal;
          c.bias = bias;
          c.dropout = 0.2;
          check_fused(c, at::kBFloat16);
        }
      }
    }
  }
}

// The rows of a rank with some of the heads are those of the whole.
TEST_F(FusedAttentionGpu, MaskIsThatOfTheGlobalHeads) {
  const FusedCase whole{.heads = 4, .groups = 4, .queries = 70, .keys = 70, .dropout = 0.4};
  const FusedSample sample = sample_of(whole, at::kHalf);
  const FusedResult all = run_fused(whole, sample, 0.125);
  FusedCase part = whole;
  part.heads = part.groups = 2;
  const auto heads = [](const at::Tensor& x) { return x.narrow(2, 2, 2); };
  const FusedSample half{.q = heads(sample.q),
                         .k = heads(sample.k),
                         .v = heads(sample.v),
                         .dy = heads(sample.dy).contiguous(),
                         .bias = {},
                         .rows = sample.rows.view({2, 4, 70}).narrow(1, 2, 2).reshape(-1)};
  const FusedResult last = run_fused(part, half, 0.125);
  EXPECT_TRUE(same_bits(last.y, heads(all.y)) && same_bits(last.dq, heads(all.dq)) &&
              same_bits(last.dk, heads(all.dk)) && same_bits(last.dv, heads(all.dv)));
}

TEST_F(FusedAttentionGpu, RefusesWhatItCannot) {
  const auto supports = [](at::ScalarType type, int64_t width, int64_t keys) {
    const at::Tensor q = gpu(randn({16, 2, 4, width}, type)), k = gpu(randn({keys, 2, 2, width}, type));
    return fused_attention_supports({q, k, k, {}});
  };
  EXPECT_TRUE(supports(at::kHalf, 64, 20));
  EXPECT_FALSE(supports(at::kFloat, 64, 20));
  EXPECT_FALSE(supports(at::kHalf, 136, 20));
  EXPECT_FALSE(supports(at::kHalf, 60, 20));
  EXPECT_FALSE(supports(at::kHalf, 64, 0));
}

}  // namespace
}  // namespace teratron
