// progress.txt over several jobs.
#include "teratron/telemetry/progress_log.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "teratron/base/file.h"

namespace teratron {
namespace {

constexpr double day = 86400;
constexpr double start = 1769860800.0;  // 2026-01-31 12:00:00 UTC

class ProgressFile : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    setenv("SLURM_JOB_ID", "17", 1);
    folder_ = std::filesystem::temp_directory_path() / ("progress_test_" + random_hex(12));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    unsetenv("SLURM_JOB_ID");
  }
  std::string text() const { return read_text(folder_ / "progress.txt", {}); }
  std::string last_line() const {
    const std::string all = text();
    const size_t end = all.rfind('\n', all.size() - 2);
    return all.substr(end == std::string::npos ? 0 : end + 1);
  }

  std::filesystem::path folder_;
};

TEST_F(ProgressFile, ThroughputOfTheJobAndOfAllJobsOfItsSize) {
  ProgressLog first(folder_, {.world_size = 2, .flops = 0.0, .wall_time = start});
  EXPECT_EQ(text(), "2026-01-31 12:00:00\tJob ID: 17\t# GPUs: 2\tStarting job\n");
  // 100 s at 3 TFLOP/s on each of two GPUs.
  first.saved({.iteration = 10, .flops = 6e14, .tokens = 2'000'000'000, .wall_time = start + 100});
  EXPECT_EQ(
      last_line(),
      "2026-01-31 12:01:40\tJob ID: 17\t# GPUs: 2\tSaved checkpoint\tIteration: 10\tJob throughput: 3.0 "
      "TFLOP/s/GPU\tCumulative throughput: 3.0 TFLOP/s/GPU\tFloating-point operations: 6.00e+14\tTokens (in "
      "billions): 2.00\n");
  // The next one idles for a hundred seconds before it starts.
  ProgressLog second(folder_, {.world_size = 2, .flops = 6e14, .wall_time = start + 200});
  second.saved({.iteration = 20, .flops = 12e14, .wall_time = start + 300});
  EXPECT_NE(last_line().find("Job throughput: 3.0 TFLOP/s/GPU\tCumulative throughput: 2.0 TFLOP/s/GPU"),
            std::string::npos);
}

TEST_F(ProgressFile, AnotherWorldSizeResetsTheCumulativeThroughput) {
  ProgressLog first(folder_, {.world_size = 2, .flops = 0.0, .wall_time = start});
  first.saved({.iteration = 10, .flops = 6e14, .wall_time = start + 100});
  ProgressLog other(folder_, {.world_size = 4, .flops = 6e14, .wall_time = start + day});
  other.saved({.iteration = 20, .flops = 18e14, .wall_time = start + day + 100});
  EXPECT_NE(last_line().find("Job throughput: 3.0 TFLOP/s/GPU\tCumulative throughput: 3.0 TFLOP/s/GPU"),
            std::string::npos);
  ProgressLog back(folder_, {.world_size = 2, .flops = 18e14, .wall_time = start + 2 * day});
  back.saved({.iteration = 30, .flops = 24e14, .wall_time = start + 2 * day + 100});
  EXPECT_NE(last_line().find("Cumulative throughput: 3.0 TFLOP/s/GPU"), std::string::npos);
}

TEST_F(ProgressFile, ForeignLinesAreIgnored) {
  write_text(folder_ / "progress.txt", "a note\nyesterday\tJob ID: \t# GPUs: 2\tStarting job\n",
             ExitCode::config);
  ProgressLog log(folder_, {.world_size = 2, .wall_time = start});
  log.saved({.iteration = 1, .flops = 2e12, .wall_time = start + 1});
  EXPECT_TRUE(text().starts_with("a note\nyesterday"));
  EXPECT_NE(last_line().find("Cumulative throughput: 1.0 TFLOP/s/GPU"), std::string::npos) << text();
}

}  // namespace
}  // namespace teratron
