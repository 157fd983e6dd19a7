// Sizes of the splits, and resuming with settings that change them.
#include "teratron/train/data/train_data.h"

#include <limits>

#include "teratron/testing/train_run.h"
#include "teratron/train/trainer.h"

namespace teratron {
namespace {

Arguments lengths(std::optional<int64_t> eval_interval, int64_t eval_iters) {
  Arguments args;
  args.global_batch_size = 4;
  args.train_iters = 20;
  args.eval_interval = eval_interval;
  args.eval_iters = eval_iters;
  return args;
}

TEST(SplitSamples, OfANewTrainingAreMegatrons) {
  EXPECT_EQ(split_samples(lengths(5, 2), {.train_iters = 20}), (SplitSamples{80, (20 / 5 + 1) * 2 * 4, 8}));
  EXPECT_EQ(split_samples(lengths(6, 2), {.train_iters = 20}), (SplitSamples{80, (20 / 6 + 1) * 2 * 4, 8}));
  EXPECT_EQ(split_samples(lengths({}, 3), {.train_iters = 20}), (SplitSamples{80, 12, 12}));
  EXPECT_EQ(split_samples(lengths(5, 0), {.train_iters = 20}), (SplitSamples{80, 0, 0}));
}

TEST(SplitSamples, DoNotDependOnWhereATrainingResumes) {
  const Arguments args = lengths(6, 2);
  for (int64_t i = 0; i <= 20; ++i) {
    const TrainProgress progress{.train_iters = 20,
                                 .iteration = i,
                                 .consumed_train_samples = i * 4,
                                 .consumed_valid_samples = i / 6 * 2 * 4};
    EXPECT_EQ(split_samples(args, progress), split_samples(args, {.train_iters = 20})) << i;
  }
}

TEST(SplitSamples, AreWhatWasConsumedAndWhatIsLeft) {
  TrainProgress progress{
      .train_iters = 20, .iteration = 10, .consumed_train_samples = 80, .consumed_valid_samples = 96};
  EXPECT_EQ(split_samples(lengths(5, 1), progress), (SplitSamples{80 + 10 * 4, 96 + 3 * 4, 4}));
  progress.train_iters = 7;
  EXPECT_EQ(split_samples(lengths(5, 1), progress), (SplitSamples{80, 96 + 4, 4})) << "nothing is left";
  progress.consumed_valid_samples = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_THROW(split_samples(lengths(5, 1), progress), UserError);
}

TEST(TrainState, CountsAreNotNegative) {
  const TrainState good{.scheduler = OptimizerParamScheduler({.decay_steps = 1}),
                        .scaler = LossScaler::constant(1)};
  for (const char* key : {"iteration", "consumed_train_samples", "consumed_valid_samples"}) {
    for (const char* value : {"-4", "18446744073709551612", "1.5"}) {
      TrainState state = good;
      std::string json = good.to_json();
      EXPECT_NO_THROW(state.load(json, ScheduleLoadRule::must_match));
      const std::string name = fmt::format("\"{}\":", key);
      json.replace(json.find(name) + name.size(), 1, value);
      EXPECT_THROW(state.load(json, ScheduleLoadRule::must_match), UserError) << json;
    }
  }
}

class SplitsOnResume : public SmallRun {
 protected:
  std::string state(const std::string& name, int iteration) const {
    return open_checkpoint(folder_ / name / fmt::format("iter_{:07d}", iteration)).state;
  }
};

TEST_F(SplitsOnResume, OtherEvaluations) {
  EXPECT_EQ(train(flags("iters", {"--eval-iters", "6", "--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(flags("iters", {"--eval-iters", "1"})), ExitCode::ok);
  EXPECT_EQ(log("iters").evaluations.size(), 6U);
  EXPECT_EQ(train(flags("interval", {"--eval-interval", "1", "--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(flags("interval", {"--eval-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(log("interval").evaluations.size(), 13U);
  EXPECT_TRUE(fs::exists(folder_ / "interval" / "iter_0000020"));
}

TEST_F(SplitsOnResume, OtherBatchSizes) {
  const std::vector<std::string> large = {"--global-batch-size", "8", "--exit-interval", "10"};
  EXPECT_EQ(train(flags("iters", large)), ExitCode::ok);
  EXPECT_EQ(train(flags("iters", {"--override-opt_param-scheduler"})), ExitCode::ok);
  EXPECT_NE(state("iters", 20).find("\"consumed_train_samples\":120,"), std::string::npos);

  const auto samples = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--train-samples", "100"});
    return without(flags("samples", more), {"--train-iters", "--lr-warmup-iters"});
  };
  EXPECT_EQ(train(samples(large)), ExitCode::ok);
  EXPECT_EQ(train(samples({})), ExitCode::ok);
  EXPECT_NE(state("samples", 15).find("\"consumed_train_samples\":100,"), std::string::npos);
}

TEST_F(SplitsOnResume, WithoutEvaluationThereIsNoSplit) {
  const ParsedArguments parsed = pretrain_arguments(flags("run", {"--eval-iters", "0"}), 1, plain_gpt());
  const Trainer trainer(parsed.args, Mesh(), plain_gpt());
  EXPECT_TRUE(trainer.has(Split::train));
  EXPECT_FALSE(trainer.has(Split::valid));
  EXPECT_FALSE(trainer.has(Split::test));
  try {
    trainer.open(Split::valid);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    EXPECT_NE(std::string(error.what()).find("there is no valid data"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--eval-iters"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace teratron
