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

}  // namespace
}  // namespace teratron
