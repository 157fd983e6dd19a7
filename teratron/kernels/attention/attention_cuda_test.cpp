// rope.h, qkv.h, softmax.h and cudnn_attention.h on the GPU
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/attention/softmax.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

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
  // Strides of a projection's input gradient: [S, B, N D].
  const at::Tensor dy = heads_first(on_gpu({c.queries, c.batch, c.heads, c.channels}, type));
  cudnn_attention_backward(forward, dy, c.options, into);
  const AttentionGradients expected = expected_of(forward, dy, c.options);
  const double allowed = 4 * tolerance(type);
  EXPECT_LT(relative_error(into.q_BNSD, expected.q_BNSD), allowed);
  EXPECT_LT(relative_error(into.k_BGSD, expected.k_BGSD), allowed);
  EXPECT_LT(relative_error(into.v_BGSD, expected.v_BGSD), allowed);
}

AttentionGradients parts_first(const at::Tensor& whole_SBGPD) {
  const QkvParts parts = unpack_qkv(whole_SBGPD);
  return {heads_first(parts.q.flatten(2, 3)), heads_first(parts.k), heads_first(parts.v)};
}

// Inputs and gradients are views of packed QKV.
TEST_F(Gpu, CudnnBackwardIntoPackedQkv) {
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

// Grouped heads, and cross attention with another number of keys.
TEST_F(Gpu, CudnnBackwardOfSeparateTensors) {
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

TEST_F(Gpu, CudnnBackwardOfEmptyTensors) {
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

TEST_F(Gpu, CudnnBackwardThrowsIfUnsupported) {
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

struct MergeCase {
  at::ScalarType type;
  int64_t queries, width, rotated;
  bool strided;
  int64_t length = 37;
};

void check_merge(const MergeCase& c) {
  constexpr int64_t batch = 5, groups = 3, positions = 50;
  const int64_t length = c.length;
  SCOPED_TRACE(fmt::format("{} {} queries, {} of {} channels rotated, strided {}", at::toString(c.type),
                           c.queries, c.rotated, c.width, c.strided));
  // Strided as attention backends return them: batch first, heads before the sequence; or contiguous.
  const auto gradient = [&](int64_t heads) {
    return c.strided ? randn({batch, groups * heads, length, c.width}, c.type).permute({2, 0, 1, 3})
                     : randn({length, batch, groups * heads, c.width}, c.type);
  };
  const QkvParts parts{gradient(c.queries).unflatten(2, {groups, c.queries}), gradient(1), gradient(1)};
  const at::Tensor angle = at::randn({positions, c.rotated / 2});
  const auto statistics = c.type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor at = at::randint(positions, {length, batch}, at::kLong);
  const RopeTable table{angle.cos().to(statistics), angle.sin().to(statistics)};
  const QkvRotation host{{f64(table.cos), f64(table.sin)}, RopeStyle::half, at};
  const QkvRotation device{{gpu(table.cos), gpu(table.sin)}, RopeStyle::half, gpu(at)};
  const bool rotates = c.rotated > 0;
  const MergedQkv expected =
      merge_qkv({f64(parts.q), f64(parts.k), f64(parts.v)}, rotates ? &host : nullptr, GradSink{});
  // .to() preserves strides.
  const QkvParts there{gpu(parts.q), gpu(parts.k), gpu(parts.v)};
  const MergedQkv merged = merge_qkv(there, rotates ? &device : nullptr, GradSink{});
  EXPECT_LT(relative_error(merged.qkv, expected.qkv), gpu_tolerance(c.type));
  EXPECT_LT(relative_error(merged.dbias, expected.dbias),
            rotates ? gpu_tolerance(c.type) : gpu_tolerance(statistics));
  const MergedQkv again = merge_qkv(there, rotates ? &device : nullptr, GradSink{});
  EXPECT_TRUE(same_bits(merged.dbias, again.dbias));
  const MergedQkv alone = merge_qkv(there, rotates ? &device : nullptr, std::nullopt);
  EXPECT_TRUE(same_bits(merged.qkv, alone.qkv));
  EXPECT_FALSE(alone.dbias.defined());
  for (const std::optional<GradSink>& sum :
       {std::optional<GradSink>(GradSink{}), std::optional<GradSink>()}) {
    const at::Tensor whole = at::cat({there.q, there.k.unsqueeze(3), there.v.unsqueeze(3)}, 3);
    const MergedQkv in_place = merge_qkv(unpack_qkv(whole), rotates ? &device : nullptr, sum);
    EXPECT_EQ(in_place.qkv.const_data_ptr(), whole.const_data_ptr());
    EXPECT_TRUE(same_bits(in_place.qkv, merged.qkv));
    if (sum) {
      EXPECT_LT(relative_error(in_place.dbias, f64(merged.dbias)), rotates ? 1e-6 : gpu_tolerance(c.type));
    }
  }
}

TEST_F(Gpu, MergeQkv) {
  for (const auto type : float_types) {
    for (const bool strided : {false, true}) {
      check_merge({type, 1, 64, 0, strided});
      check_merge({type, 1, 64, 64, strided});
      check_merge({type, 4, 128, 128, strided});
      check_merge({type, 2, 64, 64, strided, 1201});  // several tokens per thread: the pipeline wraps around
      check_merge({type, 4, 128, 64, strided});
      check_merge({type, 2, 20, 20, strided});
    }
  }
}

TEST_F(Gpu, Rope) {
  for (const auto type : float_types) {
    for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
      for (const auto& [channels, rotated] :
           {std::pair<int64_t, int64_t>{128, 128}, {128, 32}, {64, 64}, {14, 10}}) {
        SCOPED_TRACE(fmt::format("{} of {} channels", rotated, channels));
        const at::Tensor qkv = randn({19, 2, 3, 6, channels}, type);
        const at::Tensor angle = at::rand({40, rotated / 2}, at::kDouble) * 6;
        const auto statistics = type == at::kDouble ? at::kDouble : at::kFloat;
        const RopeTable t{angle.cos().to(statistics), angle.sin().to(statistics)};
        const at::Tensor positions = at::randint(40, {19, 2}, at::kLong);
        at::Tensor expected = f64(qkv).clone();
        rope_(expected.narrow(3, 0, 5), {f64(t.cos), f64(t.sin)}, positions, {.style = style});
        at::Tensor device = gpu(qkv);
        const RopeTable device_table{gpu(t.cos), gpu(t.sin)};
        const at::Tensor copied =
            rope(device.narrow(3, 0, 5), device_table, gpu(positions), {.style = style});
        rope_(device.narrow(3, 0, 5), device_table, gpu(positions), {.style = style});
        EXPECT_GPU(device, expected, type);
        EXPECT_TRUE(at::equal(copied, device.narrow(3, 0, 5)));
        rope_(device.narrow(3, 0, 5), device_table, gpu(positions),
              {.style = style, .direction = RopeDirection::inverse});
        EXPECT_LT(relative_error(device, qkv), 2 * tolerance(type));
      }
    }
  }
}

TEST_F(Gpu, Softmax) {
  for (const auto type : float_types) {
    for (const auto& [queries, keys] :
         {std::pair<int64_t, int64_t>{40, 64}, {33, 51}, {3, 2600}, {70, 24}, {2, 9000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", queries, keys));
      const at::Tensor scores = randn({2, 3, queries, keys}, type) * 2, dy = randn(scores.sizes(), type);
      const at::Tensor mask = at::rand({2, 1, queries, keys}) < 0.3;
      mask.select(2, 1).fill_(true);
      const Dropout drop{.p = 0.2, .key = {8, 9}};
      const at::Tensor slopes = at::tensor({0.25, 0.0625, 0.0}, at::kDouble);
      for (const SoftmaxOptions& o : {SoftmaxOptions{.scale = 0.5},
                                      {.scale = 0.5, .causal = true},
                                      {.scale = 1, .mask = mask},
                                      {.scale = 0.5, .causal = true, .slopes = slopes},
                                      {.scale = 0.7, .causal = true, .mask = mask, .dropout = drop}}) {
        SoftmaxOptions device = o;
        device.mask = gpu(o.mask);
        if (o.slopes.defined()) device.slopes = gpu(o.slopes).to(type == at::kDouble ? type : at::kFloat);
        const SoftmaxOutput actual = softmax_forward(gpu(scores), device),
                            expected = softmax_forward(f64(scores), o);
        EXPECT_GPU(actual.probabilities, expected.probabilities, type);
        EXPECT_GPU(actual.y, expected.y, type);
        const at::Tensor p = actual.probabilities;
        EXPECT_GPU(softmax_backward(gpu(dy), p, device), softmax_backward(f64(dy), f64(p.cpu()), o), type);
      }
    }
  }
}

}  // namespace
}  // namespace teratron
