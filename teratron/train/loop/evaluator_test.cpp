// Evaluations run in parts, between which a signal ends them.
#include <atomic>
#include <csignal>

#include <nlohmann/json.hpp>

#include "teratron/settings/component_options.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/testing/small_config.h"
#include "teratron/testing/train_run.h"

namespace teratron {
namespace {

TEST(Evaluation, InPartsIsTheSame) {
  for (const Layout& layout :
       {Layout{.tp = 2, .microbatches = 2}, Layout{.dp = 2}, Layout{.pp = 2, .microbatches = 4},
        Layout{.pp = 2, .dp = 2, .chunks = 2, .microbatches = 2}}) {
    SCOPED_TRACE(to_string(layout));
    GPTConfig config = gpt2_config();
    config.layers = 4;
    run_layout(layout, [&](const Mesh& mesh) {
      TrainEngine engine(engine_options(config, layout, at::kDouble), mesh);
      const auto batches = [&](int64_t i) {
        const int64_t sample = (mesh.data_parallel().rank + i) % test_samples;
        return test_batch({}, 37, 7, {sample, sample + 1});
      };
      const int64_t part = layout.microbatches;
      const int64_t first_has_more = mesh.data_parallel().rank == 0 ? part : 0;
      const EvaluationSize size = {.mine = 3 * part + first_has_more, .most = 4 * part};
      std::vector<int64_t> asked;
      const auto result = engine.evaluate(batches, size, [&](int64_t done, int64_t most) {
        EXPECT_EQ(most, size.most);
        asked.push_back(done);
        return done == 0 ? part : 2 * part;
      });
      ASSERT_TRUE(result);
      EXPECT_EQ(result->loss, engine.evaluate(batches, size.mine).loss);
      EXPECT_EQ(asked, (std::vector<int64_t>{0, part, 3 * part}));
      EXPECT_FALSE(
          engine.evaluate(batches, size, [&](int64_t done, int64_t) { return done == 0 ? part : 0; }));
    });
  }
}

// Their layers communicate: ranks with fewer samples than others must not stop before them.
TEST(Evaluation, RanksThatShareExpertsMayHaveDifferentNumbersOfSamples) {
  constexpr int64_t samples = 7;
  const GPTConfig config = small_expert_config();
  const auto sample = [](int64_t i) { return test_batch({}, 37, 7, {i, i + 1}); };
  double expected = 0.0;
  run_layout({}, [&](const Mesh& mesh) {
    TrainEngine engine(engine_options(config, {}, at::kDouble), mesh);
    expected = engine.evaluate(sample, samples).loss;
  });
  for (const Layout& layout :
       {Layout{.dp = 2, .ep = 2}, Layout{.dp = 4, .ep = 2, .etp = 2},
        Layout{.tp = 2, .dp = 2, .ep = 4, .sequence_parallel = true}, Layout{.pp = 2, .dp = 2, .ep = 2},
        Layout{.pp = 2, .dp = 2, .ep = 2, .chunks = 2}}) {
    SCOPED_TRACE(to_string(layout));
    run_layout(layout, [&](const Mesh& mesh) {
      TrainEngine engine(engine_options(config, layout, at::kDouble), mesh);
      const int64_t rank = mesh.data_parallel().rank, ranks = mesh.data_parallel().size;
      const EvaluationSize size = {.mine = (samples - rank + ranks - 1) / ranks,
                                   .most = (samples + ranks - 1) / ranks};
      const auto mine = [&](int64_t i) { return sample(rank + i * ranks); };
      for (const int64_t part : {int64_t{1}, int64_t{3}, samples}) {
        const auto result = engine.evaluate(mine, size, [part](int64_t, int64_t) { return part; });
        ASSERT_TRUE(result);
        EXPECT_NEAR(result->loss, expected, 1e-12 * expected) << "in parts of " << part;
      }
    });
  }
}

// A scheduler's signal in the middle of the first evaluation.
class SignalDuringEvaluation : public TrainStep {
 public:
  explicit SignalDuringEvaluation(std::atomic<int>& passes) : passes_(passes) {}
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    if (!batch.training && ++passes_ == 9) std::raise(SIGTERM);
    return TrainStep::forward_step(model, output, batch);
  }

 private:
  std::atomic<int>& passes_;  // of all ranks
};

class EvaluationRun : public SmallRun {
 protected:
  int64_t consumed_valid_samples(const std::string& name, int iteration) const {
    const fs::path path = folder_ / name / fmt::format("iter_{:07d}", iteration);
    return nlohmann::json::parse(open_checkpoint(path).state).at("consumed_valid_samples");
  }
};

TEST_F(EvaluationRun, ASignalEndsIt) {
  const std::vector<std::string> more = {"--eval-iters", "50"};
  EXPECT_EQ(train(flags("whole", more)), ExitCode::ok);
  for (const int64_t ranks : {1, 2}) {
    const std::string name = std::to_string(ranks);
    std::atomic<int> passes = 0;
    const Registry registry{.train_step = [&passes](const Registry::Context&) {
      return std::make_unique<SignalDuringEvaluation>(passes);
    }};
    EXPECT_EQ(train(flags(name, more), ranks, registry), ExitCode::stopped);
    EXPECT_LT(passes, 100) << "of " << ranks << " ranks";
    EXPECT_TRUE(read_run_log(folder_ / name / "metrics.jsonl").evaluations.empty());
    ASSERT_TRUE(fs::exists(folder_ / name / "iter_0000005"));
    EXPECT_EQ(consumed_valid_samples(name, 5), 0) << "it is left out";
    EXPECT_EQ(train(flags(name, more), ranks), ExitCode::ok);
  }
  EXPECT_EQ(tensors("1", 20), tensors("whole", 20));
  EXPECT_EQ(consumed_valid_samples("whole", 20), 4 * 50 * 4);  // evaluations, steps, samples of a step
  EXPECT_EQ(consumed_valid_samples("1", 20), 3 * 50 * 4);
}

TEST_F(EvaluationRun, ASignalAfterTheTrainingIsNotLost) {
  std::atomic<int> passes = 0;
  const Registry registry{.train_step = [&passes](const Registry::Context&) {
    return std::make_unique<SignalDuringEvaluation>(passes);
  }};
  const std::vector<std::string> more = {"--eval-interval", "100", "--eval-iters", "50"};
  testing::internal::CaptureStdout();
  EXPECT_EQ(train(flags("run", more), 1, registry), ExitCode::stopped);
  expect_in_order(testing::internal::GetCapturedStdout(),
                  {"successfully saved checkpoint from iteration      20",
                   "stopped by signal 15 before the evaluation was complete"});
  EXPECT_EQ(train(flags("run", more)), ExitCode::ok) << "there is nothing left to do";
}

}  // namespace
}  // namespace teratron
