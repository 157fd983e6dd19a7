// The losses of a run, read from its metrics.jsonl.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/telemetry/metrics.h"
#include "teratron/telemetry/report.h"

namespace teratron {

struct RunLog {
  struct Event {
    int64_t iteration = 0;
    Losses losses;
  };
  std::vector<Event> steps;
  std::vector<Event> evaluations;
  std::string end_reason;  // empty: the run did not end in order
};

inline RunLog read_run_log(const std::filesystem::path& jsonl) {
  const nlohmann::ordered_json metrics = read_metrics(jsonl);
  const auto event = [](const auto& iteration, const auto& losses) {
    RunLog::Event result{.iteration = iteration, .losses = {}};
    for (const auto& [name, loss] : losses.items())
      result.losses.emplace_back(name, loss.template get<double>());
    return result;
  };
  RunLog log;
  for (const auto& row : metrics["step"]) log.steps.push_back(event(row[0], row[1]));
  for (const auto& json : metrics["evaluation"])
    log.evaluations.push_back(event(json["iteration"], json["losses"]));
  for (const auto& end : metrics["end"]) log.end_reason = end["reason"];
  return log;
}

}  // namespace teratron
