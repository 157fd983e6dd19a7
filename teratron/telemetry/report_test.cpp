#include "teratron/telemetry/report.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/telemetry/metrics_logger.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class Report : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(directory_); }
  void TearDown() override { fs::remove_all(directory_); }
  void append(const std::string& text) const { std::ofstream(jsonl_, std::ios::app) << text; }

  fs::path directory_ = fs::temp_directory_path() / ("report_test." + random_hex(12));
  fs::path jsonl_ = directory_ / "report.jsonl";
};

/// The log of a run of 300 steps with noise, one spike and one skipped step.
void write_run(const fs::path& path) {
  const auto writer = jsonl_writer(path);
  const double start = 1769860800.0;
  const RunInfo run = {.run_id = "7f3a9c",
                       .facts = {{"model", "GPT, 10.6M parameters"},
                                 {"data", "tinyshakespeare & <friends>"},
                                 {"layout", "TP 2, PP 1, DP 2"},
                                 {"device", "NVIDIA H200"}},
                       .arguments = {{"lr", "0.0006"}, {"data_path", "['<a>']"}},
                       .train_iters = 300,
                       .world_size = 4,
                       .peak_flops_per_gpu = 1e12};
  writer->write({start, run});
  IntervalMeter meter(run);
  for (int64_t i = 1; i <= 300; ++i) {
    const double noise = 0.08 * std::sin(double(i) * 12.9898) * std::cos(double(i) * 78.233);
    const StepMetrics step = {
        .iteration = i,
        .consumed_samples = 32 * i,
        .global_batch_size = 32,
        .learning_rate = 6e-4 * std::min(1.0, double(i) / 30.0) * (1.0 - 0.9 * double(i) / 300.0),
        .losses = {{"lm loss", 1.4 + 3.0 * std::exp(-double(i) / 60.0) + noise}},
        .grad_norm = i == 150 ? 400.0 : 0.6 + 3.0 / double(i) + noise,
        .skipped = i == 150,
        .seconds = 0.09 + 0.02 * std::abs(noise),
        .tokens = 32 * 256,
        .flops = 1.6e11,
        .memory = MemoryUse{.max_allocated = 3 << 28}};
    meter.add(step);
    writer->write({start + 0.1 * double(i), step});
    if (i % 10 == 0) {
      writer->write({start + 0.1 * double(i), meter.means()});
      meter.reset();
    }
    if (i % 50 == 0) {
      writer->write(
          {start + 0.1 * double(i),
           EvalMetrics{.iteration = i, .losses = {{"lm loss", 1.5 + 3.0 * std::exp(-double(i) / 60.0)}}}});
      writer->write({start + 0.1 * double(i), SaveMetrics{.iteration = i, .directory = "runs/demo"}});
    }
  }
  writer->write(
      {start + 31,
       SampleText{.iteration = 300,
                  .prompt = "ROMEO:",
                  .text = "\nWhat light is this, that <breaks> & bends\nso softly on the garden wall?"}});
  writer->write({start + 32, EndMetrics{.iteration = 300, .reason = "finished", .seconds = 32.0}});
}

/// The metrics inlined in a page, parsed back.
Json inlined(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"metrics\">";
  const size_t begin = page.find(open) + open.size();
  const std::string text = page.substr(begin, page.find("</script>", begin) - begin);
  EXPECT_EQ(text.find('<'), std::string::npos);
  return Json::parse(text);
}

TEST_F(Report, HasLoadsOfExpertsOfAHundredIntervals) {
  const auto writer = jsonl_writer(jsonl_);
  writer->write({0.0, RunInfo{}});
  for (int64_t i = 1; i <= 250; ++i) {
    IntervalMetrics interval{.last = {.iteration = i}};
    interval.last.layers = {{"moe/expert_load", 3, {1.0 / 3.0, 2.0 / 3.0}}, {"moe/drop_rate", 3, {0.25}}};
    writer->write({double(i), interval});
  }
  const Json intervals = read_metrics(jsonl_)["interval"];
  ASSERT_EQ(intervals.size(), 250U);
  int64_t with_loads = 0;
  for (const Json& interval : intervals) with_loads += interval.contains("layers");
  EXPECT_GT(with_loads, 50);
  EXPECT_LE(with_loads, 100);
  EXPECT_EQ(intervals[0]["layers"]["moe/expert_load"]["3"], Json({0.3333, 0.6667}));
  EXPECT_EQ(intervals[0]["layers"]["moe/drop_rate"]["3"], 0.25);
}

TEST_F(Report, PageHasTheMetricsAndNoExternalResource) {
  write_run(jsonl_);
  const fs::path html = directory_ / "report.html";
  write_report(jsonl_, html);
  const std::string page = read_text(html, {});
  const Json metrics = inlined(page);
  EXPECT_EQ(metrics, read_metrics(jsonl_));
  EXPECT_EQ(metrics["run"]["facts"]["data"], "tinyshakespeare & <friends>");
  EXPECT_EQ(metrics["run"]["arguments"]["lr"], "0.0006");
  ASSERT_EQ(metrics["step"].size(), 300U);
  ASSERT_EQ(metrics["step"][149].size(), metrics["columns"].size());
  const auto column = [&](const char* name) {
    for (size_t i = 0; i < metrics["columns"].size(); ++i) {
      if (metrics["columns"][i] == name) return metrics["step"][149][i];
    }
    return Json();
  };
  EXPECT_EQ(column("iteration"), 150);
  EXPECT_NEAR(column("losses")["lm loss"].get<double>(), 1.65, 0.1);
  EXPECT_DOUBLE_EQ(column("learning_rate").get<double>(), 6e-4 * (1.0 - 0.9 * 0.5));
  EXPECT_EQ(column("grad_norm"), 400.0);
  EXPECT_EQ(column("skipped"), true);
  EXPECT_NEAR(column("seconds").get<double>(), 0.09, 0.01);
  EXPECT_EQ(column("tokens"), 32 * 256);
  EXPECT_EQ(column("max_allocated"), 3 << 28);
  EXPECT_EQ(metrics["interval"].size(), 30U);
  EXPECT_GT(metrics["interval"][0]["mfu"], 0.0);
  EXPECT_EQ(metrics["evaluation"].size(), 6U);
  EXPECT_EQ(metrics["save"].size(), 6U);
  EXPECT_EQ(metrics["sample"][0]["prompt"], "ROMEO:");
  EXPECT_EQ(metrics["end"][0]["reason"], "finished");
  EXPECT_EQ(metrics["first_time"], "2026-01-31T12:00:00.000000Z");
  EXPECT_EQ(metrics["last_time"], "2026-01-31T12:00:32.000000Z");
  for (const char* part :
       {"learning rate", "gradient norm", "tokens per second", "prefers-color-scheme: dark"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* part : {"http:", "https:", "src=", "url(", "@import", "{{"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

TEST_F(Report, LongRunIsThinnedButItsSumsAreExact) {
  std::string lines;
  for (int i = 1; i <= 25'000; ++i) {
    const char* const format =
        R"({{"type":"step","iteration":{},"tokens":3,"seconds":0.5,"skipped":{},"memory":{{"max_allocated":{}}}}})";
    lines +=
        fmt::format(fmt::runtime(format), i, i % 1000 == 0, i == 776 ? 9 : 5);  // 776: not among the rows
    lines += '\n';
  }
  write_text(jsonl_, lines, ExitCode::config);
  const Json metrics = read_metrics(jsonl_);
  EXPECT_LE(metrics["step"].size(), 10'100U);
  EXPECT_GE(metrics["step"].size(), 8'000U);
  EXPECT_EQ(metrics["step"][0][0], 1);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(metrics["step"][metrics["step"].size() - 1 - i][0], 25'000 - i);
  EXPECT_EQ(metrics["totals"],
            (Json{{"tokens", 75'000.0}, {"seconds", 12'500.0}, {"skipped", 25}, {"max_allocated", 9.0}}));
}

TEST_F(Report, TextCannotEndTheScript) {
  append(
      R"({"type":"sample","iteration":1,"prompt":"</script><script>alert(1)</script>","text":"<!--<script>"})");
  append("\n{\"type\":\"sample\",\"iteration\":2,\"prompt\":\"\\u0001\",\"text\":\"{{metrics}}\"}\n");
  const std::string page = render_report(read_metrics(jsonl_));
  const Json samples = inlined(page)["sample"];
  EXPECT_EQ(samples[0]["prompt"], "</script><script>alert(1)</script>");
  EXPECT_EQ(samples[0]["text"], "<!--<script>");
  EXPECT_EQ(samples[1]["text"], "{{metrics}}");
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
}

TEST_F(Report, ResumedRunReplacesTheStepsItRepeats) {
  for (const char* line :
       {R"({"type":"run","run_id":"a","train_iters":9,"start_iteration":0,"facts":{}})",
        R"({"type":"step","iteration":1,"losses":{"lm loss":3.0}})",
        R"({"type":"step","iteration":2,"losses":{"lm loss":2.0}})",
        R"({"type":"interval","iteration":2,"mfu":0.5})",
        R"({"type":"evaluation","iteration":2,"split":"validation","losses":{"lm loss":2.0}})",
        R"({"type":"sample","iteration":1,"prompt":"a","text":"b"})",
        R"({"type":"sample","iteration":2,"prompt":"c","text":"d"})", R"({"type":"end","reason":"signal"})",
        R"({"type":"run","run_id":"b","train_iters":9,"start_iteration":1,"facts":{"model":"M"}})",
        R"({"type":"step","iteration":2,"skipped":true,"losses":{"lm loss":null}})"}) {
    append(std::string(line) + "\n");
  }
  append(R"({"type":"step","iterat)");  // the job died here
  const Json metrics = read_metrics(jsonl_);
  ASSERT_EQ(metrics["step"].size(), 2U);
  EXPECT_EQ(metrics["step"][0][1], (Json{{"lm loss", 3.0}}));
  EXPECT_EQ(metrics["step"][1][1], (Json{{"lm loss", nullptr}}));
  EXPECT_TRUE(metrics["interval"].empty());
  EXPECT_TRUE(metrics["evaluation"].empty());
  ASSERT_EQ(metrics["sample"].size(), 1U);
  EXPECT_EQ(metrics["sample"][0]["prompt"], "a");
  EXPECT_TRUE(metrics["end"].empty()) << "the resumed run has not ended";
  EXPECT_EQ(metrics["restarts"], 1);
  EXPECT_EQ(metrics["run"]["run_id"], "b");
  EXPECT_EQ(metrics["invalid_lines"], 1);
}

TEST_F(Report, StrangeLogsAreReadOrRejected) {
  EXPECT_THROW(read_metrics(jsonl_), UserError) << "missing";
  append("\n[1]\nnonsense\n");
  EXPECT_THROW(read_metrics(jsonl_), UserError) << "no event";
  for (const char* line :
       {R"({"type":"step","iteration":"x","losses":[1],"memory":7,"skipped":1})",
        R"({"type":"step","iteration":1e300,"losses":{"lm loss":"x"},"learning_rate":null})",
        R"({"type":"run","facts":{"n":3},"train_iters":-1,"start_iteration":"y"})",
        R"({"type":"run","facts":[],"start_iteration":5})", R"({"type":"evaluation"})",
        R"({"type":"sample","text":[7]})", R"({"type":7,"time":7})", R"({})",
        "{\"type\":\"end\",\"reason\":\"\xff\"}"}) {
    append(std::string(line) + "\n");
  }
  const Json metrics = read_metrics(jsonl_);
  EXPECT_EQ(metrics["step"].size(), 1U) << "1e300 is after iteration 5";
  EXPECT_EQ(metrics["invalid_lines"], 3);
  EXPECT_EQ(inlined(render_report(metrics))["step"], metrics["step"]);
}

}  // namespace
}  // namespace teratron
