// The backward of cuDNN's attention against f64 arithmetic on the same (rounded) inputs.
#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/attention/qkv.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class GpuAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  }
};

struct Case {
  int64_t queries, keys, batch, heads, groups, channels;
  AttentionOptions options;
};

at::Tensor heads_first(const at::Tensor& x_SBND) {
  return x_SBND.permute({1, 2, 0, 3});
}

at::Tensor on_gpu(at::IntArrayRef sizes, at::ScalarType type) {
  return randn(sizes, type).to(at::kCUDA);
}

AttentionForward forward_of(const AttentionGradients& x, const AttentionOptions& options) {
  const auto result = at::_scaled_dot_product_cudnn_attention(
      x.q_BNSD, x.k_BGSD, x.v_BGSD, std::nullopt, true, 0.0, options.causal, false, options.scale);
  return {x.q_BNSD, x.k_BGSD, x.v_BGSD, std::get<0>(result), std::get<1>(result)};
}

/// By autograd, in f64.
AttentionGradients expected_of(const AttentionForward& forward, const at::Tensor& dy,
                               const AttentionOptions& options) {
  const auto leaf = [](const at::Tensor& x) { return f64(x).requires_grad_(); };
  const at::Tensor q = leaf(forward.q_BNSD), k = leaf(forward.k_BGSD), v = leaf(forward.v_BGSD);
  const int64_t repeats = q.size(1) / k.size(1);
  at::Tensor scores = at::matmul(q, k.repeat_interleave(repeats, 1).transpose(2, 3)) * options.scale;
  if (options.causal) {
    const at::Tensor hidden =
        at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool).requires_grad(false)).triu(1);
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor y = at::matmul(scores.softmax(-1), v.repeat_interleave(repeats, 1));
  y.backward(f64(dy));
  return {q.grad(), k.grad(), v.grad()};
}

void expect_backward(const AttentionForward& forward, const Case& c, const AttentionGradients& into) {
  const at::ScalarType type = forward.q_BNSD.scalar_type();
  // As a projection's input gradient comes: [S, B, N D].
  const at::Tensor dy = heads_first(on_gpu({c.queries, c.batch, c.heads, c.channels}, type));
  cudnn_attention_backward(forward, dy, c.options, into);
  const AttentionGradients expected = expected_of(forward, dy, c.options);
  const double allowed = 4 * tolerance(type);
  EXPECT_LT(relative_error(into.q_BNSD, expected.q_BNSD), allowed);
  EXPECT_LT(relative_error(into.k_BGSD, expected.k_BGSD), allowed);
  EXPECT_LT(relative_error(into.v_BGSD, expected.v_BGSD), allowed);
}

AttentionGradients parts_first(const at::Tensor& whole_SBGPD) {
  const QkvParts parts = parts_of(whole_SBGPD);
  return {heads_first(parts.q.flatten(2, 3)), heads_first(parts.k), heads_first(parts.v)};
}

// Queries, keys and values are parts of a projection, and so are the gradients.
TEST_F(GpuAttention, BackwardFillsTheGradientOfAProjection) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const Case& c :
         {Case{128, 128, 2, 3, 3, 64, {0.125, true}}, Case{100, 100, 3, 2, 2, 128, {0.1, true}},
          Case{129, 129, 1, 2, 2, 40, {0.3, false}}, Case{65, 65, 2, 4, 1, 64, {0.125, true}}}) {
      SCOPED_TRACE(
          fmt::format("{} {} of {} heads in {} groups", at::toString(type), c.queries, c.heads, c.groups));
      const std::array<int64_t, 5> sizes{c.queries, c.batch, c.groups, c.heads / c.groups + 2, c.channels};
      const at::Tensor qkv = on_gpu(sizes, type), gradient = on_gpu(sizes, type);
      expect_backward(forward_of(parts_first(qkv), c.options), c, parts_first(gradient));
    }
  }
}

// Grouped heads, and as many keys as another sequence has.
TEST_F(GpuAttention, BackwardOfSeparateTensors) {
  for (const Case& c :
       {Case{128, 128, 2, 8, 2, 128, {0.09, true}}, Case{96, 200, 2, 4, 4, 64, {0.125, false}},
        Case{77, 77, 1, 6, 3, 64, {0.125, true}}}) {
    SCOPED_TRACE(fmt::format("{} of {} heads in {} groups", c.queries, c.heads, c.groups));
    const auto tensors = [&] {
      return AttentionGradients{heads_first(on_gpu({c.queries, c.batch, c.heads, c.channels}, at::kBFloat16)),
                                heads_first(on_gpu({c.keys, c.batch, c.groups, c.channels}, at::kBFloat16)),
                                heads_first(on_gpu({c.keys, c.batch, c.groups, c.channels}, at::kBFloat16))};
    };
    expect_backward(forward_of(tensors(), c.options), c, tensors());
  }
}

TEST_F(GpuAttention, BackwardOfNothing) {
  const auto tensor = [](int64_t batch) { return on_gpu({batch, 2, 64, 64}, at::kBFloat16); };
  const AttentionGradients into{tensor(0), tensor(0), tensor(0)};
  cudnn_attention_backward({tensor(0), tensor(0), tensor(0), tensor(0), on_gpu({0, 2, 64, 1}, at::kFloat)},
                           tensor(0), {1.0, true}, into);
  const at::Tensor no_keys = on_gpu({1, 2, 0, 64}, at::kBFloat16);
  const AttentionGradients zero{tensor(1), no_keys, no_keys};
  cudnn_attention_backward({tensor(1), no_keys, no_keys, tensor(1), on_gpu({1, 2, 64, 1}, at::kFloat)},
                           tensor(1), {}, zero);
  EXPECT_EQ(zero.q_BNSD.abs().max().item<double>(), 0.0);
}

TEST_F(GpuAttention, SaysWhatCudnnCannotDo) {
  const Case c{64, 64, 1, 2, 2, 264, {1.0, true}};
  const auto tensor = [&](int64_t channels) { return on_gpu({1, 2, 64, channels}, at::kBFloat16); };
  const AttentionForward forward{tensor(c.channels), tensor(c.channels), tensor(c.channels),
                                 tensor(c.channels), on_gpu({1, 2, 64, 1}, at::kFloat)};
  const AttentionGradients into{tensor(c.channels), tensor(c.channels), tensor(c.channels)};
  try {
    cudnn_attention_backward(forward, tensor(c.channels), c.options, into);
    FAIL() << "heads of 264 channels";
  } catch (const Fault& fault) {
    EXPECT_NE(std::string(fault.what()).find("queries [1, 2, 64, 264]"), std::string::npos) << fault.what();
  }
}

}  // namespace
}  // namespace teratron
