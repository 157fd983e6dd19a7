#include "teratron/serve/metrics.h"

#include <sstream>

#include <gtest/gtest.h>

namespace teratron {
namespace {

using namespace std::chrono_literals;

// The values of Prometheus' text format by name and labels.
std::map<std::string, double> parsed(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    const size_t blank = line.rfind(' ');
    EXPECT_TRUE(values.emplace(line.substr(0, blank), std::stod(line.substr(blank + 1))).second) << line;
  }
  return values;
}

TEST(Metrics, BucketsOfAHistogramAreCumulative) {
  Metrics metrics;
  for (const double seconds : {0.001, 0.03, 0.03, 0.7, 1000.0}) metrics.add_first_token(seconds);
  const auto values = parsed(metrics.prometheus());
  const std::string name = "teratron_time_to_first_token_seconds";
  EXPECT_EQ(values.at(name + "_bucket{le=\"0.005\"}"), 1);
  EXPECT_EQ(values.at(name + "_bucket{le=\"0.05\"}"), 3);
  EXPECT_EQ(values.at(name + "_bucket{le=\"1\"}"), 4);
  EXPECT_EQ(values.at(name + "_bucket{le=\"300\"}"), 4);
  EXPECT_EQ(values.at(name + "_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(values.at(name + "_count"), 5);
  EXPECT_NEAR(values.at(name + "_sum"), 1000.761, 1e-3);
}

TEST(Metrics, TheRateIsThatOfTheLastTenSeconds) {
  Metrics metrics;
  const auto start = Metrics::Clock::now();
  metrics.add_generated_tokens(1000, start);
  metrics.add_generated_tokens(50, start + 12s);
  metrics.add_generated_tokens(30, start + 20s);
  const auto rate = [&](std::chrono::seconds later) {
    return parsed(metrics.prometheus(start + later)).at("teratron_tokens_per_second");
  };
  EXPECT_EQ(rate(21s), 8.0);
  EXPECT_EQ(rate(25s), 3.0);
  EXPECT_EQ(rate(60s), 0.0);
  EXPECT_EQ(parsed(metrics.prometheus()).at("teratron_generated_tokens_total"), 1080);
}

TEST(Metrics, ARetryIsAdvisedAfterTheMeanTimeOfRequests) {
  Metrics metrics;
  EXPECT_EQ(metrics.retry_after(), 1);
  metrics.add_request(3.0);
  metrics.add_request(4.0);
  EXPECT_EQ(metrics.retry_after(), 4);
  metrics.add_request(1000.0);
  EXPECT_EQ(metrics.retry_after(), 60);
}

TEST(Metrics, ResponsesAreCountedByPathAndStatus) {
  Metrics metrics;
  metrics.add_response("/api", 200);
  metrics.add_response("/api", 200);
  metrics.add_response("/api", 400);
  metrics.set_load({.running = 2, .waiting = 5, .used_pages = 3, .pages = 4});
  const auto values = parsed(metrics.prometheus());
  EXPECT_EQ(values.at("teratron_responses_total{path=\"/api\",status=\"200\"}"), 2);
  EXPECT_EQ(values.at("teratron_responses_total{path=\"/api\",status=\"400\"}"), 1);
  EXPECT_EQ(values.at("teratron_requests_waiting"), 5);
  EXPECT_EQ(values.at("teratron_cache_usage_ratio"), 0.75);
}

}  // namespace
}  // namespace teratron
