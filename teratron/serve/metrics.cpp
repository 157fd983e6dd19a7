#include "teratron/serve/metrics.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace teratron {

namespace {

constexpr auto rate_window = std::chrono::seconds(10);

std::string described(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

template <typename T>
std::string single(const char* name, const char* type, const char* help, T value) {
  return described(name, type, help) + fmt::format("{} {}\n", name, value);
}

}  // namespace

void DurationHistogram::add(double seconds) {
  for (size_t i = 0; i < bounds.size(); ++i) counts_[i] += seconds <= bounds[i] ? 1 : 0;
  count_ += 1;
  sum_ += seconds;
}

std::string DurationHistogram::lines(const std::string& name) const {
  std::string text;
  for (size_t i = 0; i < bounds.size(); ++i)
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds[i], counts_[i]);
  return text +
         fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count_, sum_);
}

void Metrics::add_response(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  responses_[{path, status}] += 1;
}

void Metrics::add_prompt_tokens(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
}

void Metrics::add_generated_tokens(int64_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  generated_tokens_ += tokens;
  recent_.emplace_back(now, tokens);
  while (recent_.front().first < now - rate_window) recent_.pop_front();
}

void Metrics::add_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::add_request(double seconds) {
  const std::lock_guard lock(mutex_);
  durations_.add(seconds);
  request_seconds_ += seconds;
  requests_ += 1;
}

void Metrics::set_load(const ServiceLoad& load) {
  const std::lock_guard lock(mutex_);
  load_ = load;
}

void Metrics::add_connections(int64_t change) {
  const std::lock_guard lock(mutex_);
  connections_ += change;
}

int Metrics::retry_after() const {
  const std::lock_guard lock(mutex_);
  const double mean = requests_ > 0 ? request_seconds_ / static_cast<double>(requests_) : 1.0;
  return static_cast<int>(std::clamp(std::ceil(mean), 1.0, 60.0));
}

double Metrics::tokens_per_second(Clock::time_point now) const {
  int64_t tokens = 0;
  for (const auto& [time, count] : recent_) tokens += time >= now - rate_window ? count : 0;
  return static_cast<double>(tokens) / std::chrono::duration<double>(rate_window).count();
}

std::string Metrics::prometheus(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  std::string text = described("teratron_responses_total", "counter", "Answered HTTP requests");
  for (const auto& [key, count] : responses_)
    text += fmt::format("teratron_responses_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first, key.second,
                        count);
  text += single("teratron_connections", "gauge", "Open connections", connections_);
  text += single("teratron_requests_running", "gauge", "Requests that are being answered", load_.running);
  text += single("teratron_requests_waiting", "gauge", "Requests in the queue", load_.waiting);
  text += single("teratron_prompt_tokens_total", "counter", "Tokens of accepted prompts", prompt_tokens_);
  text += single("teratron_generated_tokens_total", "counter", "Generated tokens", generated_tokens_);
  text += single("teratron_tokens_per_second", "gauge",
                 "Generated tokens per second over the last 10 seconds", tokens_per_second(now));
  const double usage =
      load_.pages > 0 ? static_cast<double>(load_.used_pages) / static_cast<double>(load_.pages) : 0.0;
  text += single("teratron_cache_usage_ratio", "gauge",
                 "Part of the memory for the states of sequences that is reserved", usage);
  text += described("teratron_time_to_first_token_seconds", "histogram",
                    "From the arrival of a request to its first token");
  text += first_token_.lines("teratron_time_to_first_token_seconds");
  text += described("teratron_request_seconds", "histogram",
                    "From the arrival of a request to the end of its answer");
  text += durations_.lines("teratron_request_seconds");
  return text;
}

}  // namespace teratron
