// Steps that differ from the others: during a ramp-up of the batch size, and those that are skipped.
#include "teratron/testing/train_run.h"

namespace teratron {
namespace {

using Steps = SmallRun;

TEST_F(Steps, RampsUpTheBatchSizeAndResumes) {
  const auto ramp = [&](const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {
        "--micro-batch-size", "1", "--global-batch-size", "6",  "--rampup-batch-size", "2", "2", "12",
        "--log-interval",     "1", "--train-samples",     "104"};
    all.insert(all.end(), more.begin(), more.end());
    return without(flags(name, all), {"--train-iters", "--lr-warmup-iters"});
  };
  const std::string text = stdout_of(ramp("whole"));
  EXPECT_NE(text.find("will use batch size rampup starting from global batch size 2 to global batch size 6"),
            std::string::npos);
  // 2 until 6 samples, 4 until 12 have been consumed (and at 12 itself 6, as in Megatron-LM).
  expect_in_order(text, {"consumed samples:            2 |", "global batch size:     2",
                         "consumed samples:            6 |", "consumed samples:           10 |",
                         "global batch size:     4", "consumed samples:           14 |",
                         "consumed samples:           20 |", "global batch size:     6"});
  EXPECT_NE(text.find("learning rate: 0.000000E+00"), std::string::npos) << "at the end";
  EXPECT_EQ(train(ramp("halves", {"--exit-interval", "3"})), ExitCode::ok);
  EXPECT_EQ(train(ramp("halves")), ExitCode::ok);
  EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
  // Evaluations take the final batch size, also during the ramp-up.
  EXPECT_EQ(train(ramp("early", {"--eval-interval", "2", "--exit-interval", "2"})), ExitCode::ok);
  const std::string state = open_checkpoint(folder_ / "early" / "iter_0000002").state;
  EXPECT_NE(state.find("\"consumed_valid_samples\":12,"), std::string::npos) << state;
}

TEST_F(Steps, StepScheduleOfTheBatchSizeResumes) {
  const auto steps = [&](const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"--step-batch-size-schedule", "0:2 0.064K:4,128:8", "--log-interval",
                                    "1"};
    all.insert(all.end(), more.begin(), more.end());
    return without(flags(name, all), {"--global-batch-size"});
  };
  // Thresholds are tokens, 8 to a sample: 4 steps of 2 samples, 2 of 4, and 14 of 8.
  const std::string text = stdout_of(steps("whole"));
  expect_in_order(
      text,
      {"step batch size schedule (3 steps):", "  >= 0 tokens (0 samples) -> batch_size=2, num_microbatches=1",
       "  >= 64 tokens (8 samples) -> batch_size=4, num_microbatches=2",
       "  >= 128 tokens (16 samples) -> batch_size=8, num_microbatches=4", "consumed samples:            8 |",
       "global batch size:     2", "consumed samples:           12 |", "global batch size:     4",
       "consumed samples:           16 |", "consumed samples:           24 |", "global batch size:     8",
       "consumed samples:          128 |"});
  EXPECT_NE(text.find("learning rate: 0.000000E+00"), std::string::npos) << "at the end";
  EXPECT_EQ(train(steps("halves", {"--exit-interval", "5"})), ExitCode::ok);
  EXPECT_EQ(train(steps("halves")), ExitCode::ok);
  EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
  // Sizes that were passed need not suit the ranks that continue; those that are left must.
  EXPECT_EQ(train(steps("other", {"--exit-interval", "7"})), ExitCode::ok);
  EXPECT_EQ(train(steps("other", {"--micro-batch-size", "8"})), ExitCode::ok);
  EXPECT_EQ(train(steps("early", {"--exit-interval", "5"})), ExitCode::ok);
  EXPECT_THROW(train(steps("early", {"--micro-batch-size", "8"})), UserError);
}

TEST_F(Steps, IterationsToSkipOnlyConsumeData) {
  const std::vector<std::string> skips = {"--iterations-to-skip", "0", "7", "--log-interval", "1"};
  const std::string text = stdout_of(flags("whole", skips));
  EXPECT_EQ(count_of(text, " lm loss: "), 18U) << text;
  for (const char* skipped : {"iteration        1/", "iteration        8/"}) {
    EXPECT_EQ(text.find(skipped), std::string::npos) << skipped;
  }
  expect_in_order(
      text,
      {"iteration        2/      20 | consumed samples:            8 | skipped samples:            4 |",
       "iteration        9/      20 | consumed samples:           36 | skipped samples:            8 |"});
  // The schedule does not advance, and the first trained step uses the second batch.
  EXPECT_EQ(train(flags("plain", {"--lr", "0"})), ExitCode::ok);
  EXPECT_EQ(log("whole").steps[0].losses, log("plain").steps[1].losses);
  EXPECT_NE(text.find("learning rate: 3.333333E-03 | global batch size:     4 | lm loss"), std::string::npos)
      << text;
  std::vector<std::string> first = skips;
  first.insert(first.end(), {"--exit-interval", "5"});
  EXPECT_EQ(train(flags("halves", first)), ExitCode::ok);
  EXPECT_EQ(train(flags("halves", skips)), ExitCode::ok);
  EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
}

TEST_F(Steps, SkippedStepsSaveEvaluateAndExitAtTheirIntervals) {
  const std::vector<std::string> skips = {"--iterations-to-skip", "4", "9", "14", "19",
                                          "--exit-interval",      "15"};
  EXPECT_EQ(train(flags("run", skips)), ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000010"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000015"));
  EXPECT_FALSE(fs::exists(folder_ / "run" / "iter_0000020"));
  EXPECT_EQ(log("run").end_reason, "exit-interval");
  EXPECT_EQ(log("run").evaluations.size(), 3U);
  const std::string state = open_checkpoint(folder_ / "run" / "iter_0000015").state;
  EXPECT_NE(state.find("\"consumed_valid_samples\":24,"), std::string::npos) << state;
  EXPECT_EQ(train(flags("run", skips)), ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020"));
}

}  // namespace
}  // namespace teratron
