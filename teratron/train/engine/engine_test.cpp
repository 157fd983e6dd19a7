// Whole steps of every layout against one rank: losses, gradient norms and, through them, the optimizer.
#include "teratron/train/engine/engine.h"

#include <chrono>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/layouts.h"
#include "teratron/testing/nonfinite_step.h"
#include "teratron/testing/small_config.h"
#include "teratron/train/setup_lines.h"

namespace teratron {
namespace {

GPTConfig config_with_dropout() {
  GPTConfig config = small_config();
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.1;
  return config;
}

EngineOptions options_of(const Layout& layout, at::ScalarType dtype) {
  EngineOptions options = engine_options(config_with_dropout(), layout, dtype);
  options.optimizer.clip_grad = 0.5;
  return options;
}

struct Curve {
  int64_t steps = 4;
  double lr = 1e-2;
};

std::vector<StepResult> train(const Layout& layout, at::ScalarType dtype, const Curve& curve) {
  std::vector<StepResult> all(curve.steps);
  std::mutex mutex;
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(options_of(layout, dtype), mesh);
    for (int64_t step = 0; step < curve.steps; ++step) {
      const StepResult result =
          train_step(engine, layout, {}, step, {.lr = curve.lr, .weight_decay = 0.1}).wait();
      const std::lock_guard lock(mutex);
      if (all[step].tokens != 0) {  // from another rank: equal on all
        EXPECT_EQ(result.loss, all[step].loss);
        EXPECT_EQ(result.grad_norm, all[step].grad_norm);
        EXPECT_EQ(result.parameter_norm, all[step].parameter_norm);
        EXPECT_EQ(result.num_zeros, all[step].num_zeros);
      }
      all[step] = result;
    }
  });
  return all;
}

void expect_same(const std::vector<StepResult>& actual, const std::vector<StepResult>& expected,
                 double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t step = 0; step < actual.size(); ++step) {
    SCOPED_TRACE(step);
    const StepResult& a = actual[step];
    const StepResult& e = expected[step];
    EXPECT_NEAR(a.loss, e.loss, bound * e.loss);
    EXPECT_NEAR(a.grad_norm, e.grad_norm, 10 * bound * e.grad_norm);
    EXPECT_NEAR(a.parameter_norm, e.parameter_norm, bound * e.parameter_norm);
    EXPECT_EQ(a.tokens, e.tokens);
    // Gradients of key biases are rounding errors and may be zero: 4 layers, 2 groups, 4 channels.
    EXPECT_NEAR(static_cast<double>(a.num_zeros), static_cast<double>(e.num_zeros), 32.0);
    EXPECT_FALSE(a.nonfinite);
  }
}

std::string name_of(const testing::TestParamInfo<Layout>& info) {
  std::string name = to_string(info.param);
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

class EngineLayouts : public testing::TestWithParam<Layout> {};

TEST_P(EngineLayouts, MatchOneRank) {
  expect_same(train(GetParam(), at::kDouble, {}), train({}, at::kDouble, {}), 1e-11);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, EngineLayouts,
    testing::Values(Layout{.microbatches = 4}, Layout{.tp = 2, .microbatches = 2},
                    Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                    Layout{.tp = 2, .sequence_parallel = true, .average_in_collective = true},
                    Layout{.dp = 2}, Layout{.dp = 2, .sharded = true, .average_in_collective = true},
                    Layout{.dp = 4, .microbatches = 2, .sharded = true, .overlap_param_gather = true},
                    Layout{.tp = 2, .dp = 2}, Layout{.pp = 2, .dp = 2, .microbatches = 4, .sharded = true},
                    Layout{.pp = 3, .stages = "E|tttt|L", .microbatches = 4}, every_axis),
    name_of);

// Every layout has the same curve for 50 steps, dropout and clipping included.
class LossCurves : public testing::TestWithParam<Layout> {};

TEST_P(LossCurves, MatchOneRank) {
  const Curve curve{.steps = 50, .lr = 3e-3};
  const std::vector<StepResult> serial = train({}, at::kFloat, curve);
  const std::vector<StepResult> parallel = train(GetParam(), at::kFloat, curve);
  for (int64_t step = 0; step < curve.steps; ++step) {
    EXPECT_NEAR(parallel[step].loss, serial[step].loss, 1e-4 * serial[step].loss) << step;
  }
  EXPECT_LT(serial.back().loss, serial.front().loss);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LossCurves,
                         testing::Values(Layout{.tp = 2}, Layout{.tp = 2, .sequence_parallel = true},
                                         Layout{.pp = 2, .microbatches = 4},
                                         Layout{.pp = 4, .stages = "Et|t|t||||t|L", .microbatches = 8},
                                         Layout{.pp = 2, .chunks = 2, .microbatches = 4}, Layout{.dp = 2},
                                         Layout{.dp = 4, .sharded = true, .overlap_param_gather = true},
                                         every_axis),
                         name_of);

// Adam's update is invariant to a constant factor, so a wrong clip factor shows in the moments alone.
TEST_P(EngineLayouts, ClipGradientsBeforeAdam) {
  const Layout& layout = GetParam();
  for (const double clip : {1e-3, 1e9}) {
    run_layout(layout, [&](const Mesh& mesh) {
      EngineOptions options = options_of(layout, at::kDouble);
      options.optimizer.clip_grad = clip;
      TrainEngine engine(options, mesh);
      const double loss_scale = 1024.0;
      const StepResult result =
          train_step(engine, layout, {}, 0, {.lr = 1e-2, .loss_scale = loss_scale}).wait();
      const double factor = std::min(1.0, clip / (result.grad_norm + 1e-6)) / loss_scale;
      EXPECT_EQ(clip<1.0, result.grad_norm> clip);
      EXPECT_NEAR(engine.optimizer().grad_scale().item<double>(), factor, 1e-6 * factor);
      std::map<std::pair<std::string, int64_t>, at::Tensor> moments;
      for (const StateTensor& state : engine.optimizer().state()) {
        moments[{state.name, state.local.begin}] = state.values;
      }
      for (const StateTensor& gradient : gradients(engine)) {
        const at::Tensor g = gradient.values * factor;
        const auto close = [&](const std::string& kind, const at::Tensor& expected) {
          const at::Tensor actual =
              moments.at({"optimizer." + kind + "." + gradient.name, gradient.local.begin});
          EXPECT_LE((actual - expected).norm().item<double>(), 1e-6 * expected.norm().item<double>())
              << gradient.name;
        };
        close("exp_avg", 0.1 * g);
        close("exp_avg_sq", 0.001 * g * g);
      }
    });
  }
}

TEST_P(EngineLayouts, NonfiniteGradientsChangeNothing) {
  const Layout& layout = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    run_layout(layout, [&](const Mesh& mesh) {
      TrainEngine engine(options_of(layout, type), mesh);
      expect_nonfinite_step_changes_nothing(engine, layout);
    });
  }
}

TEST_P(EngineLayouts, EvaluationMatchesOneRank) {
  const Layout& layout = GetParam();
  const auto evaluate = [](TrainEngine& engine, const Layout& l, int64_t steps) {
    const int64_t share = test_samples / l.dp;
    const int64_t count = share / l.microbatches;
    const auto batches = [&](int64_t i) {
      const int64_t begin = engine.mesh().data_parallel().rank * share + i % l.microbatches * count;
      return test_batch({}, 37, 7 + i / l.microbatches, {begin, begin + count});
    };
    return engine.evaluate(batches, steps * l.microbatches);
  };
  const Mesh alone;
  TrainEngine serial(options_of({}, at::kDouble), alone);
  const StepResult expected = evaluate(serial, {}, 3);
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(options_of(layout, at::kDouble), mesh);
    const StepResult result = evaluate(engine, layout, 3);
    EXPECT_NEAR(result.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_EQ(result.tokens, expected.tokens);
  });
}

// The number of unmasked tokens differs between samples: sample n of a step has n + 1 of 8.
MicroBatch uneven_batch(int64_t step, FlatRange samples) {
  const MicroBatch batch = test_batch({}, 37, step, samples);
  batch["loss_mask"].zero_();
  for (int64_t i = 0; i < samples.size(); ++i) {
    batch["loss_mask"].narrow(1, i, 1).narrow(0, 0, samples.begin + i + 1).fill_(1.0);
  }
  return batch;
}

struct UnevenSteps {
  std::vector<StepResult> steps;
  std::map<std::string, at::Tensor> weights;
};

UnevenSteps uneven_steps(const Layout& layout, bool per_token) {
  UnevenSteps result;
  GlobalTensors global;
  std::mutex mutex;
  run_ranks(layout.mesh(), [&](const Mesh& mesh) {
    EngineOptions options = options_of(layout, at::kDouble);
    options.per_token_loss = per_token;
    TrainEngine engine(options, mesh);
    const int64_t share = test_samples / layout.dp;
    const int64_t count = share / layout.microbatches;
    std::vector<StepResult> steps;
    for (int64_t step = 0; step < 3; ++step) {
      const auto batches = [&](int64_t i) {
        const int64_t begin = mesh.data_parallel().rank * share + i * count;
        return uneven_batch(step, {begin, begin + count});
      };
      const StepInputs inputs{.microbatches = layout.microbatches, .hyper = {.lr = 1e-2, .loss_scale = 8.0}};
      steps.push_back(engine.train_step(batches, inputs).wait());
    }
    for (const StateTensor& part : weights(engine)) global.add(part);
    const std::lock_guard lock(mutex);
    result.steps = steps;
  });
  result.weights = global.tensors();
  return result;
}

double largest_difference(const UnevenSteps& a, const UnevenSteps& b) {
  double largest = 0.0;
  for (const auto& [name, weight] : b.weights) {
    largest = std::max(largest, (a.weights.at(name) - weight).abs().max().item<double>());
  }
  return largest;
}

TEST(PerTokenLoss, WeightsTokensEquallyInEveryLayout) {
  const UnevenSteps serial = uneven_steps({}, true);
  EXPECT_LT(largest_difference(serial, uneven_steps({}, false)), 1e-8) << "equal for one micro-batch";
  for (const Layout& layout :
       {Layout{.dp = 2}, Layout{.dp = 2, .average_in_collective = true}, Layout{.microbatches = 4},
        Layout{.tp = 2, .dp = 2, .microbatches = 2}, Layout{.pp = 2, .dp = 2, .microbatches = 2},
        Layout{.dp = 4, .sharded = true}}) {
    SCOPED_TRACE(to_string(layout));
    const UnevenSteps parallel = uneven_steps(layout, true);
    expect_same(parallel.steps, serial.steps, 1e-11);
    EXPECT_LT(largest_difference(parallel, serial), 1e-8);
    EXPECT_GT(largest_difference(uneven_steps(layout, false), serial), 1e-4)
        << "micro-batches have equal weight";
  }
}

// A loss that is NaN while every gradient is finite.
class NanInTheLoss : public TrainStep {
 public:
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    StepLoss good = TrainStep::forward_step(model, output, batch);
    good.losses[0].sum = good.losses[0].sum + std::numeric_limits<double>::quiet_NaN();
    return good;
  }
};

TEST(TrainEngine, NanInTheLossAloneChangesNothing) {
  const Layout layout{.pp = 2, .dp = 2};
  run_ranks(layout.mesh(), [&](const Mesh& mesh) {
    NanInTheLoss step;
    EngineOptions options = options_of(layout, at::kFloat);
    options.step = &step;
    TrainEngine engine(options, mesh);
    std::vector<at::Tensor> before;
    for (const StateTensor& part : weights(engine)) before.push_back(part.values.clone());
    const StepResult result = train_step(engine, layout, {}, 0, {.lr = 1e-2}).wait();
    EXPECT_TRUE(result.nonfinite);
    EXPECT_TRUE(std::isfinite(result.grad_norm)) << "the loss must be the only reason";
    size_t i = 0;
    for (const StateTensor& part : weights(engine))
      EXPECT_TRUE(at::equal(part.values, before[i++])) << part.name;
  });
}

TEST(TrainEngine, AgreesOnMaxStopRequestAndMinProgress) {
  const Layout layout{.pp = 2, .dp = 2};
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(options_of(layout, at::kFloat), mesh);
    const auto batches = [&](int64_t) { return test_batch({}, 37, 0, {0, 4}); };
    const StepResult result = engine
                                  .train_step(batches, {.hyper = {.lr = 1e-3},
                                                        .stop_request = mesh.rank() == 2 ? 3 : 1,
                                                        .progress = mesh.rank() == 1 ? 4 : 7})
                                  .wait();
    EXPECT_EQ(result.stop_request, 3);
    EXPECT_EQ(result.progress, 4);
  });
}

TEST(TrainEngine, TimesStepsIndependentlyOfWait) {
  TrainEngine engine(options_of({}, at::kFloat), Mesh());
  const auto begin = std::chrono::steady_clock::now();
  std::vector<PendingStep> steps;
  for (int64_t step = 0; step < 3; ++step) steps.push_back(train_step(engine, {}, {}, step, {.lr = 1e-3}));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // then wait for all
  std::vector<double> seconds;
  for (PendingStep& step : steps) seconds.push_back(step.wait().seconds);
  EXPECT_EQ(seconds[0], 0.0);
  EXPECT_GT(seconds[1], 0.0);
  EXPECT_GT(seconds[2], 0.0);
  EXPECT_LT(seconds[1] + seconds[2], taken.count());
}

TEST(TrainEngine, OptimizerStateIsSharded) {
  const auto bytes_per_parameter = [](const Layout& layout) {
    double bytes = 0.0;
    std::mutex mutex;
    run_layout(layout, [&](const Mesh& mesh) {
      GPTConfig config = config_with_dropout();
      config.hidden = 64;
      config.kv_channels = 16;
      config.ffn_hidden = 256;
      TrainEngine engine(engine_options(config, layout, at::kBFloat16), mesh);
      const StateMemory memory = state_memory(engine);
      EXPECT_NEAR(static_cast<double>(memory.weights), 2.0 * static_cast<double>(memory.parameters),
                  0.01 * static_cast<double>(memory.weights));
      EXPECT_EQ(memory.gradients, 2 * memory.weights);
      const std::lock_guard lock(mutex);
      bytes = static_cast<double>(memory.optimizer) / static_cast<double>(memory.parameters);
    });
    return bytes;
  };
  EXPECT_NEAR(bytes_per_parameter({.dp = 4, .bucket_size = 1'000'000}), 10.0, 0.1);
  EXPECT_NEAR(bytes_per_parameter({.dp = 4, .bucket_size = 1'000'000, .sharded = true}), 2.5, 0.03);
  EXPECT_EQ(
      to_string(
          {.parameters = 1'000'000, .weights = 2'000'000, .gradients = 4'000'000, .optimizer = 3'000'000}),
      "memory of weights, gradients and optimizer: 2.0 + 4.0 + 3.0 = 9.0 bytes per parameter, 0.009 GB");
}

TEST(TrainEngine, ReducesGradientsInBf16) {
  const auto gradients_with = [](bool in_bf16, bool sharded) {
    GlobalTensors global;
    const Layout layout{.dp = 4, .sharded = sharded};
    run_layout(layout, [&](const Mesh& mesh) {
      EngineOptions options = options_of(layout, at::kFloat);
      options.reduction.reduce_in_bf16 = in_bf16;
      TrainEngine engine(options, mesh);
      train_step(engine, layout, {}, 0, {.lr = 1e-3});
      for (const StateTensor& part : gradients(engine)) global.add(part);
    });
    return global.tensors();
  };
  const auto exact = gradients_with(false, false);
  for (const bool sharded : {false, true}) {
    for (const auto& [name, rounded] : gradients_with(true, sharded)) {
      const double error =
          (rounded - exact.at(name)).norm().item<double>() / exact.at(name).norm().item<double>();
      EXPECT_LT(error, 1e-2) << name;
      EXPECT_GT(error, 1e-5) << name << " was not rounded";
    }
  }
}

}  // namespace
}  // namespace teratron
