#include "teratron/telemetry/report.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/telemetry/chart.h"
#include "teratron/telemetry/sinks.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

class Report : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* kept = std::getenv("TERATRON_TEST_OUTPUT");
    keep_ = kept != nullptr;
    directory_ = keep_ ? fs::path(kept) : fs::temp_directory_path() / ("report_test." + random_hex(12));
    fs::create_directories(directory_);
    jsonl_ = directory_ / "report.jsonl";
    fs::remove(jsonl_);
  }
  void TearDown() override {
    if (!keep_) fs::remove_all(directory_);
  }
  void append(const std::string& text) const { std::ofstream(jsonl_, std::ios::app) << text; }

  fs::path directory_;
  fs::path jsonl_;
  bool keep_ = false;
};

/// A run of 300 steps as training would log it, with noise, one spike and one skipped step.
void write_run(const fs::path& path) {
  const auto sink = jsonl_sink(path);
  const double start = 1769860800.0;
  const RunFacts run = {.run_id = "7f3a9c",
                        .facts = {{"model", "GPT, 10.6M parameters"},
                                  {"data", "tinyshakespeare & <friends>"},
                                  {"layout", "TP 2, PP 1, DP 2"},
                                  {"device", "NVIDIA H200"}},
                        .train_iters = 300,
                        .world_size = 4,
                        .peak_flops_per_gpu = 1e12};
  sink->write({start, run});
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
    sink->write({start + 0.1 * double(i), step});
    if (i % 10 == 0) {
      sink->write({start + 0.1 * double(i), meter.means()});
      meter.reset();
    }
    if (i % 50 == 0) {
      sink->write(
          {start + 0.1 * double(i),
           EvalMetrics{.iteration = i, .losses = {{"lm loss", 1.5 + 3.0 * std::exp(-double(i) / 60.0)}}}});
      sink->write({start + 0.1 * double(i), SaveMetrics{.iteration = i, .directory = "runs/demo"}});
    }
  }
  sink->write(
      {start + 31,
       SampleText{.iteration = 300,
                  .prompt = "ROMEO:",
                  .text = "\nWhat light is this, that <breaks> & bends\nso softly on the garden wall?"}});
  sink->write({start + 32, EndMetrics{.iteration = 300, .reason = "finished", .seconds = 32.0}});
}

TEST_F(Report, PageHasCurvesFactsAndSamples) {
  write_run(jsonl_);
  const fs::path html = directory_ / "report.html";
  write_report(jsonl_, html);
  const std::string page = read_text(html, {});
  for (const char* part :
       {"<h1>GPT, 10.6M parameters</h1>", ">lm loss</text>", ">learning rate</text>", ">gradient norm</text>",
        ">tokens per second</text>", ">model FLOPs utilisation (%)</text>", "300 / 300",
        "tinyshakespeare &amp; &lt;friends&gt;", "TP 2, PP 1, DP 2", "that &lt;breaks&gt; &amp; bends",
        "class='prompt'>ROMEO:</span>", "<td>finished</td>", "prefers-color-scheme: dark"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* part : {"http:", "https:", "<script", "src=", "url(", "nan", "inf,", "breaks> &"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

TEST_F(Report, RestartReplacesTheStepsItDidAgain) {
  for (const char* line :
       {R"({"type":"run","run_id":"a","train_iters":9,"start_iteration":0,"facts":{}})",
        R"({"type":"step","iteration":1,"losses":{"lm loss":3.0}})",
        R"({"type":"step","iteration":2,"losses":{"lm loss":2.0}})",
        R"({"type":"evaluation","iteration":2,"split":"validation","losses":{"lm loss":2.0}})",
        R"({"type":"run","run_id":"b","train_iters":9,"start_iteration":1,"facts":{"model":"M"}})",
        R"({"type":"step","iteration":2,"skipped":true,"losses":{"lm loss":null}})"}) {
    append(std::string(line) + "\n");
  }
  append(R"({"type":"step","iterat)");  // the job died here
  const RunLog log = read_run_log(jsonl_);
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_TRUE(log.steps[1].skipped);
  EXPECT_TRUE(std::isnan(log.steps[1].losses.at(0).second));
  EXPECT_TRUE(log.evaluations.empty());
  EXPECT_EQ(log.restarts, 1);
  EXPECT_EQ(log.run_id, "b");
  EXPECT_EQ(log.unreadable_lines, 1);
  EXPECT_NE(render_report(log).find("unreadable lines"), std::string::npos);
}

TEST_F(Report, StrangeLogsAreReadOrRejected) {
  EXPECT_THROW(read_run_log(jsonl_), UserError) << "missing";
  append("\n[1]\nnonsense\n");
  EXPECT_THROW(read_run_log(jsonl_), UserError) << "no event";
  append(R"({"type":"step","iteration":"x","losses":[1],"memory":7,"skipped":1})"
         "\n");
  append(R"({"type":"step","iteration":1e300,"losses":{"lm loss":"x"},"learning_rate":null})"
         "\n");
  append(R"({"type":"run","facts":{"n":3},"train_iters":-1})"
         "\n");
  append(R"({"type":7,"time":7})"
         "\n");
  const RunLog log = read_run_log(jsonl_);
  EXPECT_EQ(log.facts.at(0).second, "3");
  EXPECT_FALSE(render_report(log).empty());
}

TEST(Chart, ThinsLongSeriesButKeepsExtremes) {
  Series series{.name = "a", .css_class = "train", .points = {}};
  for (int i = 0; i < 100000; ++i) series.points.emplace_back(i, i == 77777 ? 5.0 : (i % 2 == 0 ? 1.0 : 2.0));
  const std::string svg = line_chart({.title = "<t>"}, {series});
  EXPECT_LT(svg.size(), 40000U);
  EXPECT_NE(svg.find("&lt;t&gt;"), std::string::npos);
  EXPECT_EQ(line_chart({}, {{.name = "", .css_class = "x", .points = {{1.0, NAN}}}}), "");
  EXPECT_EQ(line_chart({}, {}), "");
  EXPECT_NE(line_chart({}, {{.name = "", .css_class = "x", .points = {{5.0, 0.0}}}}).find("<polyline"),
            std::string::npos)
      << "one point at zero";
}

TEST(Chart, SmoothAveragesBothDirections) {
  const auto smoothed = smooth({{1, 4.0}, {2, NAN}, {3, 2.0}}, 2.0);
  ASSERT_EQ(smoothed.size(), 2U);
  EXPECT_DOUBLE_EQ(smoothed[0].second, 0.5 * (4.0 + (0.5 * 2.0 + 4.0) / 1.5));
  EXPECT_DOUBLE_EQ(smoothed[1].second, 0.5 * (2.0 + (0.5 * 4.0 + 2.0) / 1.5));
  std::vector<std::pair<double, double>> line;
  for (int i = 0; i < 1000; ++i) line.emplace_back(i, 3.0 * i);
  EXPECT_NEAR(smooth(line, 20.0)[500].second, 1500.0, 1e-6) << "no lag";
}

TEST(Chart, EscapesHtml) {
  EXPECT_EQ(escape_html("a<b>&\"'\x01\n"), "a&lt;b&gt;&amp;&quot;&#39;\xef\xbf\xbd\n");
}

}  // namespace
}  // namespace teratron
