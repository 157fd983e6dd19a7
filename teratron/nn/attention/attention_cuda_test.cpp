// attention.h on the GPU
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include "teratron/testing/attention_reference.h"

namespace teratron {
namespace {

AttentionSample on_device(const AttentionSample& x) {
  return {gpu(x.q_SBND), gpu(x.k_SBGD), gpu(x.v_SBGD), gpu(x.dy_SBF), gpu(x.distance_bias)};
}

std::string expected_backend(const AttentionCase& c) {
  if (!c.cu_seqlens_q.empty()) return "flash-varlen";
  const bool square = c.mask == Mask::full || c.queries == c.keys;
  return square && c.window == 0 && c.width <= 128 ? "cudnn" : "flash";
}

// Scores and their gradients are rounded to 16 bits.
double fused_tolerance(at::ScalarType type) {
  return 4 * tolerance(type);
}

struct Deterministic {
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
};

class AttentionGpu : public Gpu {};

TEST_F(AttentionGpu, MatchesExplicitMasks) {
  for (const int64_t width : {64, 128, 256}) {
    for (const AttentionCase& c : attention_cases(width)) {
      for (const auto type : {at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(fmt::format("{}, {}", at::toString(type), c.name()));
        const AttentionSample sample = random_sample(c, type);
        const double scale = 1.0 / std::sqrt(static_cast<double>(width));
        const AttentionRequest request = request_of(c, on_device(sample), scale);
        EXPECT_EQ(attention_backend(request), expected_backend(c));
        expect_result(run_attention(request, gpu(sample.dy_SBF)), reference(c, sample, scale),
                      fused_tolerance(type));
      }
    }
  }
}

TEST_F(AttentionGpu, MathMatchesExplicitMasks) {
  for (const AttentionCase& c : attention_cases(24)) {
    SCOPED_TRACE(c.name());
    const AttentionSample sample = random_sample(c, at::kDouble);
    const AttentionRequest request = request_of(c, on_device(sample), 0.3);
    EXPECT_EQ(attention_backend(request), "math");
    expect_result(run_attention(request, gpu(sample.dy_SBF)), reference(c, sample, 0.3), 1e-11);
  }
}

// Dropout masks equal the CPU's, at any layout's place of the heads; so do biases and their gradients.
TEST_F(AttentionGpu, FusedMatchesMathOnTheCpu) {
  for (const int64_t width : {64, 128}) {
    for (const AttentionCase& c : attention_cases(width)) {
      for (const auto& [dropout, biased] : {std::pair{0.2, false}, {0.0, true}, {0.3, true}}) {
        SCOPED_TRACE(fmt::format("{}, dropout {}, bias {}", c.name(), dropout, biased));
        AttentionSample sample = random_sample(c, at::kBFloat16);
        if (biased) sample.distance_bias = random_distance_bias(c, at::kBFloat16);
        AttentionRequest device = request_of(c, on_device(sample), 0.125);
        device.dropout = dropout;
        device.dropout_key = {5, 6, gpu(at::arange(11, 11 + c.batch))};
        device.head_offset = 3;
        device.total_heads = c.heads + 4;
        EXPECT_EQ(attention_backend(device), "fused");
        AttentionRequest host = device;
        host.q_SBND = f64(sample.q_SBND);
        host.k_SBGD = f64(sample.k_SBGD);
        host.v_SBGD = f64(sample.v_SBGD);
        host.distance_bias = f64(sample.distance_bias);
        host.dropout_key.sample_ids_B = at::arange(11, 11 + c.batch);
        host.segments = request_of(c, sample, 0.125).segments;
        EXPECT_EQ(attention_backend(host), "math");
        expect_result(run_attention(device, gpu(sample.dy_SBF)), run_attention(host, f64(sample.dy_SBF)),
                      fused_tolerance(at::kBFloat16));
      }
    }
  }
}

TEST_F(AttentionGpu, AlibiMatchesMathOnTheCpu) {
  for (const AttentionCase& c : attention_cases(64)) {
    SCOPED_TRACE(c.name());
    const AttentionSample sample = random_sample(c, at::kHalf);
    AttentionRequest device = request_of(c, on_device(sample), 0.125), host = request_of(c, sample, 0.125);
    device.alibi_slopes = gpu(at::rand({c.heads}));
    EXPECT_EQ(attention_backend(device), "fused");
    host.q_SBND = f64(sample.q_SBND);
    host.k_SBGD = f64(sample.k_SBGD);
    host.v_SBGD = f64(sample.v_SBGD);
    host.alibi_slopes = f64(device.alibi_slopes.cpu());
    expect_result(run_attention(device, gpu(sample.dy_SBF)), run_attention(host, f64(sample.dy_SBF)),
                  fused_tolerance(at::kHalf));
  }
}

TEST_F(AttentionGpu, DeterministicSegments) {
  const Deterministic on;
  for (const AttentionCase& c : attention_cases(64)) {
    SCOPED_TRACE(c.name());
    const AttentionSample sample = random_sample(c, at::kBFloat16);
    const AttentionRequest request = request_of(c, on_device(sample), 0.125);
    EXPECT_EQ(attention_backend(request), c.cu_seqlens_q.empty() ? "flash" : "flash-varlen");
    const AttentionResult first = run_attention(request, gpu(sample.dy_SBF));
    expect_result(first, reference(c, sample, 0.125), fused_tolerance(at::kBFloat16));
    for (int repeat = 0; repeat < 3; ++repeat) {
      const AttentionResult again = run_attention(request, gpu(sample.dy_SBF));
      EXPECT_TRUE(same_bits(again.y_SBF, first.y_SBF) && same_bits(again.dq, first.dq) &&
                  same_bits(again.dk, first.dk) && same_bits(again.dv, first.dv));
    }
  }
}

// A frozen projection of queries or of keys.
TEST_F(AttentionGpu, SomeInputsNeedNoGradient) {
  const AttentionCase c{.queries = 32, .keys = 48, .batch = 2, .width = 64, .mask = Mask::full};
  const AttentionSample sample = random_sample(c, at::kBFloat16);
  const AttentionResult expected = reference(c, sample, 0.125);
  for (const bool frozen_queries : {true, false}) {
    AttentionRequest request = request_of(c, on_device(sample), 0.125);
    EXPECT_EQ(attention_backend(request), "cudnn");
    request.q_SBND.requires_grad_(!frozen_queries);
    request.v_SBGD.requires_grad_(frozen_queries);
    attention(request).backward(gpu(sample.dy_SBF));
    const at::Tensor gradient = frozen_queries ? request.v_SBGD.grad() : request.q_SBND.grad();
    EXPECT_LT(relative_error(gradient, frozen_queries ? expected.dv : expected.dq),
              fused_tolerance(at::kBFloat16));
  }
}

// A captured graph follows the contents of cu_seqlens, so nothing of it was read on the host.
TEST_F(AttentionGpu, GraphOfSegmentsFollowsTheBounds) {
  AttentionCase c{.queries = 256, .keys = 256, .batch = 2, .heads = 4, .groups = 2, .width = 64};
  std::mt19937 random(3);
  c.cu_seqlens_q = random_bounds(random, 2, 256, {4, 8});
  AttentionSample sample = random_sample(c, at::kBFloat16);
  const AttentionRequest slots = request_of(c, on_device(sample), 0.125);
  const at::Tensor dy = gpu(sample.dy_SBF);
  std::vector<at::Tensor> inputs{slots.q_SBND, slots.k_SBGD, slots.v_SBGD}, gradients;
  for (at::Tensor& input : inputs) input.requires_grad_();
  at::Tensor y;
  const auto step = [&] {
    y = attention(slots);
    gradients = torch::autograd::grad({y}, inputs, {dy});
  };
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  step();
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin(at::cuda::graph_pool_handle(), cudaStreamCaptureModeRelaxed);
  step();
  graph.capture_end();
  const at::NoGradGuard no_grad;
  for (const int64_t per_sample : {4, 1, 6, 2}) {
    SCOPED_TRACE(per_sample);
    c.cu_seqlens_q = random_bounds(random, 2, 256, {per_sample, 16 - 2 * per_sample});
    sample = random_sample(c, at::kBFloat16);
    slots.segments.cu_seqlens_q.copy_(at::tensor(c.cu_seqlens_q, at::kInt));
    slots.q_SBND.copy_(sample.q_SBND);
    slots.k_SBGD.copy_(sample.k_SBGD);
    slots.v_SBGD.copy_(sample.v_SBGD);
    dy.copy_(sample.dy_SBF);
    graph.replay();
    c10::cuda::device_synchronize();
    const at::AutoGradMode with_gradients(true);
    expect_result({y.detach(), gradients[0], gradients[1], gradients[2]}, reference(c, sample, 0.125),
                  fused_tolerance(at::kBFloat16));
  }
}

// The scores of 16,384 tokens in 8 heads would be 4 GiB.
TEST_F(AttentionGpu, MemoryIsLinearInTheSequence) {
  constexpr int64_t length = 16'384;
  const at::Tensor x = randn({length, 1, 8, 64}, at::kBFloat16).to(at::kCUDA);
  AttentionRequest request{.q_SBND = x, .k_SBGD = x, .v_SBGD = x, .scale = 0.125};
  request.segments.cu_seqlens_q = at::arange(0, length + 1, 512, at::kInt).to(at::kCUDA);
  const auto peak = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak; };
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  const int64_t before = peak();
  run_attention(request, at::ones({length, 1, 512}, x.options()));
  EXPECT_LT(peak() - before, 512 << 20);
}

}  // namespace
}  // namespace teratron
