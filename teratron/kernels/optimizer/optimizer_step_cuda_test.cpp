// optimizer_step.h on the GPU against the CPU
#include "teratron/kernels/optimizer/optimizer_step.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

using teratron::gpu;

struct Shards {
  AdamShard adam;
  SgdShard sgd;
};

// Master weights of x: f64, f32 with an f16 copy, or bf16 with a remainder.
MasterWeights make_weights(const at::Tensor& x, at::ScalarType type) {
  if (type == at::kDouble) return {x.clone()};
  const at::Tensor whole = x.to(at::kFloat);
  if (type == at::kFloat) return {.param = whole, .copy = at::zeros_like(whole, at::kHalf)};
  const MasterWeights weights{at::empty_like(whole, at::kBFloat16), at::empty_like(whole, at::kShort)};
  split_master_weights(whole, weights.param, weights.remainder);
  return weights;
}

Shards make_shards(int64_t n, at::ScalarType type, at::ScalarType grad) {
  const at::ScalarType state = type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor groups = at::randint(3, {(n + 63) / 64}, at::kByte), x = randn({n}, at::kDouble);
  const at::Tensor g = randn({n}, grad);
  return {{make_weights(x, type), g, randn({n}, state), randn({n}, state).abs(), groups},
          {make_weights(x, type), g, randn({n}, state), groups}};
}

MasterWeights gpu(const MasterWeights& w) {
  return {gpu(w.param), gpu(w.remainder), gpu(w.copy)};
}

Shards gpu(const Shards& s) {
  return {{gpu(s.adam.weights), gpu(s.adam.grad), gpu(s.adam.exp_avg), gpu(s.adam.exp_avg_sq),
           gpu(s.adam.groups)},
          {gpu(s.sgd.weights), gpu(s.sgd.grad), gpu(s.sgd.momentum_buffer), gpu(s.sgd.groups)}};
}

at::Tensor numbers(const MasterWeights& w) {
  return w.remainder.defined() ? join_master_weights(w.param, w.remainder) : w.param;
}

StepScalars scalars(at::Device device) {
  return {.lr = at::tensor({1e-2, 3e-3, 0.0}, at::kDouble).to(device),
          .weight_decay = at::tensor({0.1, 0.0, 0.5}, at::kDouble).to(device),
          .step = at::full({1}, 6, at::kLong).to(device),
          .grad_scale = at::full({1}, 0.37f).to(device),
          .found_inf = at::zeros({1}).to(device)};
}

void check_steps(int64_t n, at::ScalarType param, at::ScalarType grad) {
  SCOPED_TRACE(fmt::format("{} {} {}", n, at::toString(param), at::toString(grad)));
  Shards host = make_shards(n, param, grad), device = gpu(host);
  const StepScalars s = scalars(at::kCPU), t = scalars(at::kCUDA);
  advance_step_(s.step, s.found_inf);
  advance_step_(t.step, t.found_inf);
  EXPECT_EQ(t.step.item<int64_t>(), 7);
  for (const bool decoupled : {true, false}) {
    const AdamOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decoupled_weight_decay = decoupled};
    adam_step_(host.adam, s, options);
    adam_step_(device.adam, t, options);
  }
  sgd_step_(host.sgd, s, 0.9);
  sgd_step_(device.sgd, t, 0.9);
  const double limit = param == at::kDouble ? 1e-14 : 5e-7;
  EXPECT_LT(relative_error(numbers(device.adam.weights), numbers(host.adam.weights)), limit);
  EXPECT_LT(relative_error(device.adam.exp_avg, host.adam.exp_avg), limit);
  EXPECT_LT(relative_error(device.adam.exp_avg_sq, host.adam.exp_avg_sq), limit);
  EXPECT_LT(relative_error(numbers(device.sgd.weights), numbers(host.sgd.weights)), limit);
  EXPECT_LT(relative_error(device.sgd.momentum_buffer, host.sgd.momentum_buffer), limit);
  for (const MasterWeights& weights : {device.adam.weights, device.sgd.weights}) {
    if (!weights.copy.defined()) continue;
    EXPECT_TRUE(same_bits(weights.copy.cpu(), weights.param.to(at::kHalf).cpu()));
  }
  const at::Tensor before = numbers(device.adam.weights).clone();
  t.found_inf.fill_(1);
  adam_step_(device.adam, t, {});
  advance_step_(t.step, t.found_inf);
  EXPECT_TRUE(at::equal(numbers(device.adam.weights), before));
  EXPECT_EQ(t.step.item<int64_t>(), 7);
}

TEST_F(Gpu, OptimizerSteps) {
  for (const int64_t n : {1, 63, 100'003, 4'000'000}) {
    for (const at::ScalarType param : {at::kFloat, at::kBFloat16}) {
      for (const at::ScalarType grad : {at::kFloat, at::kBFloat16, at::kHalf}) check_steps(n, param, grad);
    }
    check_steps(n, at::kDouble, at::kDouble);
  }
}

// A shard of the same values at addresses shifted by `offset` elements.
AdamShard shifted(const AdamShard& shard, int64_t offset) {
  const auto shift = [&](const at::Tensor& t) {
    return at::empty({t.numel() + offset}, t.options()).slice(0, offset).copy_(t);
  };
  return {{shift(shard.weights.param), shift(shard.weights.remainder)},
          shift(shard.grad),
          shift(shard.exp_avg),
          shift(shard.exp_avg_sq),
          shard.groups};
}

// Steps parts that are too small for the pipelined kernel.
void step_parts(const AdamShard& shard, const StepScalars& scalars, const AdamOptions& options) {
  constexpr int64_t part = 64 * 1000;
  for (int64_t i = 0; i < shard.grad.numel(); i += part) {
    const auto cut = [&](const at::Tensor& t) { return t.slice(0, i, i + part); };
    adam_step_({{cut(shard.weights.param), cut(shard.weights.remainder)},
                cut(shard.grad),
                cut(shard.exp_avg),
                cut(shard.exp_avg_sq),
                shard.groups.defined() ? shard.groups.slice(0, i / 64, (i + part) / 64) : at::Tensor{}},
               scalars, options);
  }
}

// Enough parameters for the pipelined kernel, whole stages and a remainder, aligned to no more than 16 bytes,
// with and without groups: the same bits as in parts.
TEST_F(Gpu, AdamPipelined) {
  for (const int64_t n : {int64_t{1} << 21, int64_t{3'000'001}, int64_t{5'000'128}}) {
    for (const bool grouped : {true, false}) {
      AdamShard host = make_shards(n, at::kBFloat16, at::kFloat).adam;
      if (!grouped) host.groups = at::Tensor{};
      const AdamShard on_gpu{gpu(host.weights), gpu(host.grad), gpu(host.exp_avg), gpu(host.exp_avg_sq),
                             gpu(host.groups)};
      const AdamShard whole = shifted(on_gpu, 8), parts = shifted(on_gpu, 0);
      const StepScalars s = scalars(at::kCUDA);
      const AdamOptions options{.decoupled_weight_decay = n % 2 == 0};
      adam_step_(whole, s, options);
      step_parts(parts, s, options);
      EXPECT_TRUE(same_bits(numbers(whole.weights).cpu(), numbers(parts.weights).cpu())) << n;
      EXPECT_TRUE(same_bits(whole.exp_avg.cpu(), parts.exp_avg.cpu())) << n;
      EXPECT_TRUE(same_bits(whole.exp_avg_sq.cpu(), parts.exp_avg_sq.cpu())) << n;
      EXPECT_FALSE(same_bits(numbers(whole.weights).cpu(), numbers(host.weights))) << n;
    }
  }
}

// Unaligned slices, the larger long enough for the pipelined kernel.
TEST_F(Gpu, UnalignedOptimizerSteps) {
  for (const int64_t n : {1000, 2'000'000}) {
    const AdamShard host = make_shards(n, at::kBFloat16, at::kFloat).adam;
    const AdamShard device = shifted(
        {gpu(host.weights), gpu(host.grad), gpu(host.exp_avg), gpu(host.exp_avg_sq), gpu(host.groups)}, 1);
    adam_step_(host, scalars(at::kCPU), {});
    adam_step_(device, scalars(at::kCUDA), {});
    EXPECT_LT(relative_error(numbers(device.weights), numbers(host.weights)), 5e-7);
  }
}

TEST_F(Gpu, SplitMasterWeightsMatchesCpu) {
  at::Tensor x = at::randn({1'000'003});
  x[7] = std::numeric_limits<float>::quiet_NaN();
  x[8] = -std::numeric_limits<float>::infinity();
  for (const int64_t offset : {0, 1}) {
    const at::Tensor part = x.slice(0, offset), y = gpu(x).slice(0, offset);
    const auto empty = [](const at::Tensor& like, at::ScalarType type) { return at::empty_like(like, type); };
    const at::Tensor high = empty(part, at::kBFloat16), low = empty(part, at::kShort);
    const at::Tensor gpu_high = empty(y, at::kBFloat16), gpu_low = empty(y, at::kShort);
    split_master_weights(part, high, low);
    split_master_weights(y, gpu_high, gpu_low);
    EXPECT_TRUE(same_bits(gpu_high.cpu(), high));
    EXPECT_TRUE(same_bits(gpu_low.cpu(), low));
    EXPECT_TRUE(same_bits(join_master_weights(gpu_high, gpu_low).cpu(), join_master_weights(high, low)));
  }
}

}  // namespace
}  // namespace teratron
