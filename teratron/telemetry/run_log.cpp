#include "teratron/telemetry/run_log.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"

namespace teratron {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>()
                                                   : std::numeric_limits<double>::quiet_NaN();
}

int64_t integer(const Json& json, const char* key) {
  const double value = number(json, key);
  return std::abs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
}

std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Losses losses(const Json& json) {
  Losses result;
  const auto found = json.find("losses");
  if (found == json.end() || !found->is_object()) return result;
  for (const auto& [name, value] : found->items()) result.emplace_back(name, number(*found, name.c_str()));
  return result;
}

template <typename List>
void drop_after(List& list, int64_t iteration) {
  std::erase_if(list, [&](const auto& entry) { return entry.iteration > iteration; });
}

void start_run(const Json& json, RunLog& log) {
  const int64_t start = integer(json, "start_iteration");
  if (!log.steps.empty()) ++log.restarts;
  drop_after(log.steps, start);
  drop_after(log.evaluations, start);
  drop_after(log.samples, start);
  std::erase_if(log.mfu, [&](const auto& entry) { return entry.first > start; });
  log.run_id = text(json, "run_id");
  log.train_iters = integer(json, "train_iters");
  log.end_reason.clear();
  log.facts.clear();
  const auto facts = json.find("facts");
  if (facts == json.end() || !facts->is_object()) return;
  for (const auto& [name, value] : facts->items()) {
    log.facts.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

void add_step(const Json& json, RunLog& log) {
  RunLog::Step step;
  step.iteration = integer(json, "iteration");
  step.learning_rate = number(json, "learning_rate");
  step.grad_norm = number(json, "grad_norm");
  step.seconds = number(json, "seconds");
  step.tokens = integer(json, "tokens");
  const auto skipped = json.find("skipped");
  step.skipped = skipped != json.end() && skipped->is_boolean() && skipped->get<bool>();
  step.losses = losses(json);
  log.steps.push_back(std::move(step));
  const auto memory = json.find("memory");
  if (memory != json.end() && memory->is_object()) {
    log.peak_memory = std::max(log.peak_memory, integer(*memory, "max_allocated"));
  }
}

void add_event(const Json& json, RunLog& log) {
  const std::string type = text(json, "type");
  const int64_t iteration = integer(json, "iteration");
  if (type == "run") start_run(json, log);
  if (type == "step") add_step(json, log);
  if (type == "interval" && !std::isnan(number(json, "mfu")))
    log.mfu.emplace_back(iteration, number(json, "mfu"));
  if (type == "evaluation") log.evaluations.push_back({iteration, text(json, "split"), losses(json)});
  if (type == "save") ++log.saves;
  if (type == "sample") log.samples.push_back({iteration, text(json, "prompt"), text(json, "text")});
  if (type == "end") log.end_reason = text(json, "reason");
  const std::string time = text(json, "time");
  if (log.first_time.empty()) log.first_time = time;
  if (!time.empty()) log.last_time = time;
}

}  // namespace

RunLog read_run_log(const std::filesystem::path& jsonl) {
  const std::string content = read_text(jsonl, {.kind = ExitCode::data});
  RunLog log;
  int64_t events = 0;
  std::string_view rest = content;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) {
      ++log.unreadable_lines;
      continue;
    }
    add_event(json, log);
    ++events;
  }
  if (events == 0) {
    throw data_error({.what = "no event in this file",
                      .where = jsonl.string(),
                      .fix = "give the metrics.jsonl that a training run wrote"});
  }
  return log;
}

}  // namespace teratron
