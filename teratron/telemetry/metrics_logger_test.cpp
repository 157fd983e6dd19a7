#include "teratron/telemetry/metrics_logger.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/telemetry/tensorboard.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A directory removed after the test, or TERATRON_TEST_OUTPUT, which remains for readers in Python.
class MetricsLoggerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* kept = std::getenv("TERATRON_TEST_OUTPUT");
    keep_ = kept != nullptr;
    directory_ =
        keep_ ? fs::path(kept) : fs::temp_directory_path() / ("metrics_logger_test." + random_hex(12));
    fs::create_directories(directory_);
  }
  void TearDown() override {
    if (!keep_) fs::remove_all(directory_);
  }
  fs::path directory_;
  bool keep_ = false;
};

std::vector<MetricsEvent> example_run() {
  std::vector<MetricsEvent> events;
  const double start = 1769860800.0;
  events.push_back({start, RunInfo{.run_id = "a1b2",
                                   .facts = {{"model", "GPT, 10.6M parameters"}, {"device", "CPU"}},
                                   .arguments = {{"wandb_exp_name", "run one"}},
                                   .train_iters = 4,
                                   .world_size = 2,
                                   .peak_flops_per_gpu = 1e12}});
  IntervalMeter meter(std::get<RunInfo>(events[0].data));
  for (int64_t i = 1; i <= 4; ++i) {
    const StepMetrics step = {
        .iteration = i,
        .consumed_samples = 8 * i,
        .global_batch_size = 8,
        .learning_rate = 1e-3 / double(i),
        .losses = {{"lm loss", i == 3 ? std::numeric_limits<double>::infinity() : 4.0 / double(i)}},
        .loss_scale = 65536.0,
        .grad_norm = 1.0 / double(i),
        .num_zeros = 3,
        .params_norm = 10.0,
        .skipped = i == 3,
        .seconds = 0.25,
        .tokens = 1024,
        .flops = 1e10,
        .flops_full = 2e10,
        .memory = MemoryUse{.allocated = 1, .max_allocated = 2, .reserved = 3, .max_reserved = 4}};
    meter.add(step);
    events.push_back({start + 0.25 * double(i), step});
  }
  events.push_back({start + 1.0, meter.means()});
  events.push_back({start + 1.5, EvalMetrics{.iteration = 4,
                                             .consumed_samples = 32,
                                             .prefix = "iteration 4",
                                             .losses = {{"lm loss", 1.5}},
                                             .seconds = 0.5}});
  events.push_back(
      {start + 1.6, SaveMetrics{.iteration = 4, .directory = "runs/a", .seconds = 0.1, .bytes = 1000}});
  events.push_back(
      {start + 1.7, SampleText{.iteration = 4, .prompt = "Once", .text = " upon \xff a <time>"}});
  events.push_back({start + 1.8, TimerMetrics{.iteration = 4, .rows = {{"forward-backward", 10.0, 20.0}}}});
  events.push_back({start + 2.0, EndMetrics{.iteration = 4, .reason = "finished", .seconds = 2.0}});
  return events;
}

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST_F(MetricsLoggerTest, EvaluationsInJson) {
  const MetricsEvent event = {
      0.0, EvalMetrics{.losses = {{"lm loss", 1.5}}, .metrics = {{"hits", 2.0}}, .repeated = true}};
  const auto written = to_json(event);
  EXPECT_EQ(written["losses"]["hits"], 2.0);
  EXPECT_EQ(written["perplexity"].size(), 1U);
  EXPECT_EQ(written["repeated"], true);
  EXPECT_FALSE(to_json({0.0, EvalMetrics{}}).contains("repeated"));
}

TEST_F(MetricsLoggerTest, JsonlHasEveryEvent) {
  const fs::path path = directory_ / "metrics.jsonl";
  fs::remove(path);
  {
    MetricsLogger logger;
    logger.add_async("metrics.jsonl", jsonl_writer(path));
    for (const MetricsEvent& event : example_run()) logger.log(event);
    EXPECT_TRUE(logger.flush());
    EXPECT_EQ(logger.dropped(), 0);
  }
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), example_run().size());
  EXPECT_EQ(lines[0]["type"], "run");
  EXPECT_EQ(lines[0]["time"], "2026-01-31T12:00:00.000000Z");
  EXPECT_EQ(lines[0]["facts"]["model"], "GPT, 10.6M parameters");
  EXPECT_EQ(lines[0]["arguments"]["wandb_exp_name"], "run one");
  EXPECT_EQ(lines[1]["type"], "step");
  EXPECT_EQ(lines[1]["losses"]["lm loss"], 4.0);
  EXPECT_EQ(lines[1]["memory"]["max_allocated"], 2);
  EXPECT_TRUE(lines[3]["skipped"].get<bool>());
  EXPECT_TRUE(lines[3]["losses"]["lm loss"].is_null()) << "infinity";
  EXPECT_EQ(lines[5]["type"], "interval");
  EXPECT_EQ(lines[5]["skipped_iterations"], 1);
  EXPECT_EQ(lines[5]["nan_iterations"], 1);
  EXPECT_DOUBLE_EQ(lines[5]["losses"]["lm loss"], 7.0 / 3.0);
  EXPECT_DOUBLE_EQ(lines[5]["mfu"], 4e10 / (1.0 * 2 * 1e12));
  EXPECT_DOUBLE_EQ(lines[5]["mfu_full"], 8e10 / (1.0 * 2 * 1e12));
  EXPECT_EQ(lines[6]["type"], "evaluation");
  EXPECT_EQ(lines[7]["type"], "save");
  EXPECT_EQ(lines[8]["text"], " upon \xef\xbf\xbd a <time>") << "not UTF-8";
  EXPECT_EQ(lines[9]["milliseconds"]["forward-backward"]["max"], 20.0);
  EXPECT_EQ(lines[10]["reason"], "finished");
}

TEST_F(MetricsLoggerTest, Crc32cMatchesTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU) << "RFC 3720, B.4";
  EXPECT_EQ(crc32c(""), 0U);
}

TEST_F(MetricsLoggerTest, TensorBoardFileIsFramed) {
  const fs::path events = directory_ / "tensorboard";
  {
    MetricsLogger logger;
    logger.add_async("TensorBoard", tensorboard_writer(events));
    for (const MetricsEvent& event : example_run()) logger.log(event);
  }
  const auto names = list_directory(events, ExitCode::data);
  ASSERT_FALSE(names.empty());
  EXPECT_TRUE(names.back().starts_with("events.out.tfevents."));
  const std::string bytes = read_text(events / names.back(), {});
  size_t records = 0;
  for (size_t at = 0; at < bytes.size(); ++records) {
    ASSERT_LE(at + 12, bytes.size());
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    const uint32_t of_length = crc32c(bytes.substr(at, 8));
    EXPECT_EQ(crc, ((of_length >> 15) | (of_length << 17)) + 0xa282ead8U);
    at += 12 + length + 4;
    ASSERT_LE(at, bytes.size());
  }
  // Version, run facts and an argument, 4 x 2 steps, interval, 2 x evaluation, sample, timers.
  EXPECT_EQ(records, 1U + 2 + 8 + 1 + 2 + 1 + 1);
}

TEST_F(MetricsLoggerTest, ConsolePrintsTheChosenFormat) {
  for (const bool short_format : {false, true}) {
    std::vector<std::string> printed;
    MetricsLogger logger;
    logger.add_sync("console",
                    console_writer({.short_format = short_format,
                                    .print = [&](std::string_view line) { printed.emplace_back(line); }}));
    for (const MetricsEvent& event : example_run()) logger.log(event);
    ASSERT_EQ(printed.size(), short_format ? 4U : 6U);
    EXPECT_NE(printed[0].find(short_format ? "step 4/4 | loss" : "iteration        4/       4 |"),
              std::string::npos);
    EXPECT_NE(printed[short_format ? 1 : 2].find(short_format ? "ppl 4.48" : "lm loss PPL: 4.481689E+00"),
              std::string::npos);
  }
}

class FailingWriter : public MetricsWriter {
 public:
  explicit FailingWriter(std::atomic<int>& calls) : calls_(calls) {}
  void write(const MetricsEvent&) override {
    if (++calls_ == 3) throw Fault("disk full");
  }

 private:
  std::atomic<int>& calls_;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(MetricsLoggerTest, Fault30FailingWriterWarnsOnceAndIsDropped) {
  std::atomic<int> sync_calls = 0;
  std::atomic<int> async_calls = 0;
  testing::internal::CaptureStderr();
  {
    MetricsLogger logger;
    logger.add_sync("bad console", std::make_unique<FailingWriter>(sync_calls));
    logger.add_async("bad file", std::make_unique<FailingWriter>(async_calls));
    logger.add_async("good file", jsonl_writer(directory_ / "good.jsonl"));
    for (int i = 0; i < 20; ++i) logger.log({0.0, SaveMetrics{.iteration = i}});
    EXPECT_TRUE(logger.flush());
    EXPECT_GT(logger.dropped(), 0);
  }
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(output, "warning"), 2U) << output;
  EXPECT_EQ(count_of(output, "bad file failed and is switched off for the rest of the run: disk full"), 1U)
      << output;
  EXPECT_EQ(sync_calls, 3);
  EXPECT_EQ(async_calls, 3);
  EXPECT_EQ(lines_of(directory_ / "good.jsonl").size(), 20U);
}

TEST_F(MetricsLoggerTest, Fault30HangingWriterDoesNotSlowTraining) {
  class HangingWriter : public MetricsWriter {
   public:
    explicit HangingWriter(std::atomic<bool>& release) : release_(release) {}
    void write(const MetricsEvent&) override {
      while (!release_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }

   private:
    std::atomic<bool>& release_;
  };
  std::atomic<bool> release = false;
  testing::internal::CaptureStderr();
  {
    MetricsLogger logger(10);
    logger.add_async("slow file", std::make_unique<HangingWriter>(release));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) logger.log({0.0, SaveMetrics{.iteration = i}});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    EXPECT_FALSE(logger.flush(0.05));
    EXPECT_GE(logger.dropped(), 89);
    release = true;
  }
  EXPECT_EQ(count_of(testing::internal::GetCapturedStderr(), "does not keep up"), 1U);
}

TEST_F(MetricsLoggerTest, PathsThatCannotBeWrittenAreRejected) {
  std::ofstream(directory_ / "file") << "x";
  EXPECT_THROW(jsonl_writer(directory_ / "no" / "such" / "metrics.jsonl"), UserError);
  EXPECT_THROW(tensorboard_writer(directory_ / "file" / "tensorboard"), UserError);
}

TEST_F(MetricsLoggerTest, JsonlIsAppendedOnResume) {
  const fs::path path = directory_ / "resumed.jsonl";
  for (int i = 0; i < 2; ++i) jsonl_writer(path)->write({0.0, RunInfo{.start_iteration = i}});
  EXPECT_EQ(lines_of(path).size(), 2U);
}

}  // namespace
}  // namespace teratron
