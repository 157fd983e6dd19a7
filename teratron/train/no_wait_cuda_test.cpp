// Launching a step never waits for the device.
#include <chrono>
#include <optional>

#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/device/device.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/models.h"
#include "teratron/train/engine/engine.h"

namespace teratron {
namespace {

// That of libtorch. Its function is inline, and a program that loads CUDA's libraries (cuda_libraries.h) has
// a second variable.
c10::cuda::WarningState& warning_state() {
  void* const state = dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_");
  TERATRON_ASSERT(state, "libc10_cuda has no warning_state()");
  return *static_cast<c10::cuda::WarningState*>(state);
}

// libtorch throws at every synchronizing call.
class NoWaiting {
 public:
  NoWaiting() { warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

// `steps` are warm-up: allocation, kernel selection, graph capture.
void expect_no_wait(const TestVariant& variant, int64_t graphs_after, bool where_host_bound, int64_t steps,
                    const std::optional<Fp8Options>& fp8 = {}) {
  EngineOptions options{.model = gpt_plan(variant.config, {}),
                        .precision = {.dtype = at::kBFloat16, .fp8 = fp8},
                        .device = at::kCUDA};
  options.optimizer.clip_grad = 1.0;
  options.graphs_after = graphs_after;
  options.graphs_where_host_bound = where_host_bound;
  TrainEngine engine(options, Mesh());
  const MicroBatch batch = to_device(test_batch(variant.config, Group(), false), at::kCUDA);
  const MicroBatches same = [&](int64_t) { return batch; };
  const StepInputs inputs{.microbatches = 3, .hyper = {.lr = 1e-3}};
  for (int64_t i = 0; i < steps; ++i) engine.finish(engine.train_step(same, inputs).wait());
  std::optional<PendingStep> step;
  {
    const NoWaiting strict;
    EXPECT_ANY_THROW(at::ones({1}, at::kCUDA).item<float>()) << "the mode is on";
    step = engine.train_step(same, inputs);
  }
  EXPECT_GT(step->wait().loss, 0.0) << variant.name;
}

TEST(NoWait, TrainStepNeverSynchronizes) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  for (const TestVariant& variant : family_variants({.hidden = 64, .ffn_hidden = 256, .positions = 64})) {
    expect_no_wait(variant, 0, false, 1);
    expect_no_wait(variant, 1, false, 2);
    // By themselves: in a step that decides, and after it.
    expect_no_wait(variant, 3, true, 3);
    expect_no_wait(variant, 3, true, 14);
  }
}

TEST(NoWait, ExpertsNeverSynchronize) {
  if (gpu_count() == 0 || compute_capability(at::kCUDA) / 10 != 9) GTEST_SKIP() << "no grouped GEMM";
  TestVariant variant{"experts", llama_config({.hidden = 64, .ffn_hidden = 256, .positions = 64})};
  ExpertsConfig& experts = variant.config.experts;
  experts.layers = {1, 1};
  experts.options.router.experts = experts.options.experts.experts = 8;
  experts.options.experts.ffn_hidden = 32;
  experts.options.router.aux_loss = 0.1;
  for (const bool padded : {false, true}) {
    if (padded) experts.options.router.capacity_factor = 1.25;
    experts.options.router.pad_to_capacity = padded;
    for (const std::optional<Fp8Options>& fp8 : {std::optional<Fp8Options>(), std::optional(Fp8Options{})}) {
      expect_no_wait(variant, 0, false, 1, fp8);
      expect_no_wait(variant, 1, false, 2, fp8);
    }
  }
}

TEST(NoWait, OffloadingNeverSynchronizes) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  for (TestVariant& variant : family_variants({.hidden = 64, .ffn_hidden = 256, .positions = 64})) {
    variant.config.offload = {.layers = 2, .min_bytes = 0};
    expect_no_wait(variant, 0, false, 1);
  }
}

TEST(NoWait, TimesStepsThatAreReadTogether) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  const TestVariant variant = family_variants({.hidden = 64, .ffn_hidden = 256, .positions = 64}).front();
  TrainEngine engine(
      {.model = gpt_plan(variant.config, {}), .precision = {.dtype = at::kBFloat16}, .device = at::kCUDA},
      Mesh());
  const MicroBatch batch = to_device(test_batch(variant.config, Group(), false), at::kCUDA);
  const auto step = [&](int64_t microbatches) {
    return engine.train_step([&](int64_t) { return batch; },
                             {.microbatches = microbatches, .hyper = {.lr = 1e-3}});
  };
  step(1).wait();
  const auto begin = std::chrono::steady_clock::now();
  PendingStep small = step(1);
  PendingStep large = step(20);
  const double large_seconds = large.wait().seconds;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const double small_seconds = small.wait().seconds;
  EXPECT_GT(small_seconds, 0.0);
  EXPECT_GT(large_seconds, 3 * small_seconds);
  EXPECT_LT(large_seconds, taken.count());
}

}  // namespace
}  // namespace teratron
