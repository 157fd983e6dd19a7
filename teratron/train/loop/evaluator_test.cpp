// Evaluations run in parts, between which a signal ends them.
#include <atomic>
#include <csignal>

#include "teratron/settings/component_options.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
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

using EvaluationRun = SmallRun;

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
    EXPECT_TRUE(fs::exists(folder_ / name / "iter_0000005"));
    EXPECT_EQ(train(flags(name, more), ranks), ExitCode::ok);
  }
  EXPECT_EQ(tensors("1", 20), tensors("whole", 20));
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
