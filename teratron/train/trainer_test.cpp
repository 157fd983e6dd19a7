// Whole steps of every layout against one rank: losses, gradient norms and, through them, the optimizer.
#include "teratron/train/trainer.h"

#include <cmath>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/comm/thread_world.h"

namespace teratron {
namespace {

struct Layout {
  int64_t tp = 1;
  int64_t dp = 1;
  bool sequence_parallel = false;
  bool sharded = false;
};

constexpr int64_t sequence = 8;
constexpr int64_t global_batch = 8;
constexpr int64_t steps = 4;

TrainerOptions options_of(const Layout& layout, at::ScalarType dtype) {
  return {.model = {.layers = 2,
                    .hidden = 16,
                    .ffn_hidden = 32,
                    .heads = 4,
                    .query_groups = 2,
                    .kv_channels = 4,
                    .vocabulary = 37,
                    .padded_vocabulary = 40,
                    .max_positions = sequence,
                    .hidden_dropout = 0.1},
          .stage = {.layers = 2},
          .optimizer = {.clip_grad = 0.5, .count_zeros = true},
          .dtype = dtype,
          .seed = 5,
          .sequence_parallel = layout.sequence_parallel,
          .sharded_optimizer = layout.sharded,
          .bucket_size = 1000,
          .report_parameter_norm = true};
}

MicroBatch samples(int64_t step, int64_t first, int64_t count) {
  at::Generator generator = at::detail::createCPUGenerator(100 + step);
  const at::Tensor text = at::randint(0, 37, {sequence + 1, global_batch}, generator, at::kLong);
  return {.tokens_SB = text.narrow(0, 0, sequence).narrow(1, first, count).contiguous(),
          .positions_SB = at::arange(sequence, at::kLong).unsqueeze(1).expand({sequence, count}).contiguous(),
          .labels_SB = text.narrow(0, 1, sequence).narrow(1, first, count).contiguous(),
          // Equal numbers of counted tokens per micro-batch, so that the means of layouts agree.
          .loss_mask_SB = at::ones({sequence, count}),
          .first_sample = step * global_batch + first};
}

std::vector<StepNumbers> train(const Layout& layout, at::ScalarType dtype, int64_t micro_batch) {
  std::vector<StepNumbers> all(steps);
  std::mutex mutex;
  run_ranks(MeshOptions{.tp = layout.tp, .dp = layout.dp}, [&](const Mesh& mesh) {
    Trainer trainer(options_of(layout, dtype), mesh);
    const int64_t rank = mesh.group(Axis::dp).rank;
    const int64_t share = global_batch / layout.dp;
    for (int64_t step = 0; step < steps; ++step) {
      const auto batches = [&](int64_t i) {
        return samples(step, rank * share + i * micro_batch, micro_batch);
      };
      const StepNumbers numbers = trainer
                                      .train_step(batches, {.microbatches = share / micro_batch,
                                                            .hyper = {.lr = 1e-2, .weight_decay = 0.1},
                                                            .stop_request = mesh.rank() == 0 ? step : 0})
                                      .resolve();
      const std::lock_guard lock(mutex);
      if (all[step].tokens != 0) {  // another rank was here: all see the same numbers
        EXPECT_EQ(numbers.loss, all[step].loss);
        EXPECT_EQ(numbers.grad_norm, all[step].grad_norm);
      }
      all[step] = numbers;
    }
  });
  return all;
}

class Steps : public testing::TestWithParam<Layout> {};

void expect_same(const std::vector<StepNumbers>& actual, const std::vector<StepNumbers>& expected,
                 double bound) {
  for (int64_t step = 0; step < steps; ++step) {
    EXPECT_NEAR(actual[step].loss, expected[step].loss, bound * expected[step].loss) << step;
    EXPECT_NEAR(actual[step].grad_norm, expected[step].grad_norm, bound * expected[step].grad_norm) << step;
    EXPECT_NEAR(actual[step].parameter_norm, expected[step].parameter_norm,
                bound * expected[step].parameter_norm)
        << step;
    EXPECT_EQ(actual[step].tokens, expected[step].tokens);
    // Biases of keys have no gradient but rounding, which may happen to be zero: 2 layers, 2 groups, 4 channels.
    EXPECT_NEAR(actual[step].num_zeros, expected[step].num_zeros, 16);
    EXPECT_EQ(actual[step].stop_request, step);
    EXPECT_FALSE(actual[step].nonfinite);
  }
}

TEST_P(Steps, AreThoseOfOneRank) {
  expect_same(train(GetParam(), at::kDouble, 2), train({}, at::kDouble, 2), 1e-12);
  expect_same(train(GetParam(), at::kFloat, 2), train({}, at::kFloat, 2), 1e-5);
}

TEST_P(Steps, DoNotDependOnTheMicroBatch) {
  expect_same(train(GetParam(), at::kDouble, 1), train({}, at::kDouble, 8), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Steps,
                         testing::Values(Layout{.tp = 2}, Layout{.tp = 2, .sequence_parallel = true},
                                         Layout{.dp = 2}, Layout{.dp = 2, .sharded = true},
                                         Layout{.dp = 4, .sharded = true}, Layout{.tp = 2, .dp = 2},
                                         Layout{
                                             .tp = 2, .dp = 2, .sequence_parallel = true, .sharded = true}));

TEST(Trainer, MasterWeightsGatherWhatBf16WouldLose) {
  const Mesh mesh;
  Trainer trainer(options_of({}, at::kBFloat16), mesh);
  const at::Tensor before = trainer.parameters().find("decoder.final_layernorm.weight")->tensor.clone();
  // Steps far below a bf16 unit in the last place of 1.0 (2^-8).
  for (int64_t step = 0; step < 60; ++step) {
    trainer.train_step([&](int64_t) { return samples(0, 0, 8); }, {.hyper = {.lr = 2e-4}});
  }
  const at::Tensor after = trainer.parameters().find("decoder.final_layernorm.weight")->tensor;
  EXPECT_GT((after - before).abs().max().item<double>(), 2e-3);
}

TEST(Trainer, AGradientThatIsNotFiniteChangesNothing) {
  const Mesh mesh;
  Trainer trainer(options_of({}, at::kFloat), mesh);
  trainer.train_step([&](int64_t) { return samples(0, 0, 8); }, {.hyper = {.lr = 1e-2}});
  std::vector<at::Tensor> before;
  for (const Parameter& parameter : trainer.parameters().all()) before.push_back(parameter.tensor.clone());
  const auto infinite = [&](int64_t) {
    MicroBatch batch = samples(1, 0, 8);
    batch.loss_mask_SB.fill_(std::numeric_limits<float>::infinity());
    return batch;
  };
  const StepNumbers numbers = trainer.train_step(infinite, {.hyper = {.lr = 1e-2}}).resolve();
  EXPECT_TRUE(numbers.nonfinite);
  size_t i = 0;
  for (const Parameter& parameter : trainer.parameters().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor, before[i++])) << parameter.name;
  }
  EXPECT_EQ(trainer.optimizer().steps(), 1);
}

}  // namespace
}  // namespace teratron
