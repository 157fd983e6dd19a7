// Runs in FP8: resuming, other layouts, to bf16 and back, and the devices that can.
#include "teratron/testing/train_run.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {
namespace {

class Fp8Run : public SmallRun {
 protected:
  std::vector<std::string> fp8_flags(const std::string& name,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--hidden-size",
                                    "32",
                                    "--bf16",
                                    "--fp8-format",
                                    "hybrid",
                                    "--deterministic-mode",
                                    "--fp8-amax-history-len",
                                    "4",
                                    "--fp8-amax-compute-algo",
                                    "max"};
    all.insert(all.end(), more.begin(), more.end());
    return flags(name, all);
  }
};

TEST_F(Fp8Run, ResumeIsBitwiseEqual) {
  for (const int64_t ranks : {1, 4}) {
    const std::string suffix = std::to_string(ranks);
    std::vector<std::string> layout;
    if (ranks == 4) layout = {"--tp", "2", "--sequence-parallel", "--use-distributed-optimizer"};
    std::vector<std::string> first = layout;
    first.insert(first.end(), {"--exit-interval", "10"});
    EXPECT_EQ(train(fp8_flags("whole" + suffix, layout), ranks), ExitCode::ok);
    EXPECT_EQ(train(fp8_flags("halves" + suffix, first), ranks), ExitCode::ok);
    EXPECT_EQ(train(fp8_flags("halves" + suffix, layout), ranks), ExitCode::ok);
    const auto whole = tensors("whole" + suffix, 20);
    EXPECT_EQ(tensors("halves" + suffix, 20), whole);
    EXPECT_TRUE(std::any_of(whole.begin(), whole.end(), [](const auto& tensor) {
      return tensor.first.find("optimizer.fp8_amax_history.decoder.layers.1.mlp.linear_fc2.weight") !=
             std::string::npos;
    }));
  }
}

TEST_F(Fp8Run, ResumesInAnotherLayout) {
  EXPECT_EQ(train(fp8_flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(fp8_flags("run", {"--tp", "2", "--pp", "2"}), 4), ExitCode::ok);
}

TEST_F(Fp8Run, SwitchesFromBf16AndBack) {
  const std::vector<std::string> size = {"--hidden-size", "32", "--bf16"};
  std::vector<std::string> ten = size;
  ten.insert(ten.end(), {"--exit-interval", "10"});
  const std::string missing = "does not hold optimizer.fp8_";
  EXPECT_EQ(train(flags("run", ten)), ExitCode::ok);
  EXPECT_NE(stderr_of(fp8_flags("run", {"--exit-interval", "5"})).find(missing), std::string::npos);
  EXPECT_EQ(stderr_of(fp8_flags("run", {"--exit-interval", "17"})).find(missing), std::string::npos);
  EXPECT_NE(
      stderr_of(fp8_flags("run", {"--exit-interval", "18", "--fp8-amax-history-len", "2"})).find(missing),
      std::string::npos);
  EXPECT_EQ(train(flags("run", size)), ExitCode::ok);
}

TEST(Fp8Device, RequiresFp8Gemms) {
  Arguments args;
  EXPECT_NO_THROW(check_fp8_on(args, "NVIDIA A100", 80));
  args.fp8 = "hybrid";
  EXPECT_NO_THROW(check_fp8_on(args, "NVIDIA H200", 90));
  EXPECT_NO_THROW(check_fp8_on(args, "NVIDIA L40S", 89));
  try {
    check_fp8_on(args, "NVIDIA A100", 80);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("NVIDIA A100 has compute capability 8.0"), std::string::npos);
  }
}

TEST(Devices, NeedTensorCoresForBf16) {
  EXPECT_NO_THROW(check_kernels_on("NVIDIA A100", 80));
  try {
    check_kernels_on("Tesla T4", 75);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("Tesla T4 has compute capability 7.5"), std::string::npos);
  }
}

}  // namespace
}  // namespace teratron
