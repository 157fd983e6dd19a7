#include "teratron/telemetry/report.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/strings.h"

namespace teratron {

extern const char* const kReportTemplate;  // the file report.html, embedded by CMake

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kEventTypes[] = {"step",  "interval", "evaluation", "sample",
                                            "score", "save",     "end"};
constexpr std::string_view kColumns[] = {"iteration", "losses", "learning_rate", "grad_norm",
                                         "seconds",   "tokens", "skipped",       "max_allocated"};

/// Null if there is none: events may be of any version, or damaged.
Json member(const Json& object, std::string_view key) {
  if (!object.is_object()) return Json();
  const auto found = object.find(key);
  return found == object.end() ? Json() : *found;
}

/// A third of the size of the object.
Json step_row(const Json& step) {
  Json row = Json::array();
  for (const std::string_view column : kColumns) row.push_back(member(step, column));
  row.back() = member(member(step, "memory"), "max_allocated");
  return row;
}

void start_run(const Json& run, Json& metrics) {
  if (!metrics["step"].empty()) metrics["restarts"] = metrics["restarts"].get<int64_t>() + 1;
  metrics["run"] = run;
  metrics["runs"].push_back({{"start_iteration", member(run, "start_iteration")},
                             {"time", member(run, "time")},
                             {"facts", member(run, "facts")}});
  metrics["end"] = Json::array();
  const Json start = member(run, "start_iteration");
  for (const std::string_view type : {"step", "interval", "evaluation", "sample"}) {
    std::erase_if(metrics[type].get_ref<Json::array_t&>(), [&](const Json& event) {
      const Json iteration = event.is_array() ? event[0] : member(event, "iteration");
      return iteration.is_number() && start.is_number() && iteration > start;
    });
  }
}

void add_event(const Json& event, Json& metrics) {
  const Json type = member(event, "type");
  if (type == "run") start_run(event, metrics);
  if (std::find(std::begin(kEventTypes), std::end(kEventTypes), type) != std::end(kEventTypes)) {
    metrics[type.get<std::string>()].push_back(type == "step" ? step_row(event) : event);
  }
  const Json time = member(event, "time");
  if (time.is_null()) return;
  if (metrics["first_time"].is_null()) metrics["first_time"] = time;
  metrics["last_time"] = time;
}

/// Sums and the peak over all steps, which the page cannot compute from thinned rows.
Json step_totals(const Json& rows) {
  double tokens = 0, seconds = 0, max_allocated = 0;
  int64_t skipped = 0;
  for (const Json& row : rows) {
    if (row[4].is_number()) seconds += row[4].get<double>();
    if (row[5].is_number()) tokens += row[5].get<double>();
    skipped += row[6] == true;
    if (row[7].is_number()) max_allocated = std::max(max_allocated, row[7].get<double>());
  }
  return {{"tokens", tokens}, {"seconds", seconds}, {"skipped", skipped}, {"max_allocated", max_allocated}};
}

/// Every n-th row and the last ones, so that the page of a long run stays small.
void thin(Json& rows) {
  constexpr size_t kMost = 10'000, kLast = 100;
  const size_t stride = rows.size() / kMost + 1;
  if (stride == 1) return;
  Json kept = Json::array();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % stride == 0 || i + kLast >= rows.size()) kept.push_back(std::move(rows[i]));
  }
  rows = std::move(kept);
}

/// Loads of experts from at most so many intervals, to four digits: a picture shows no more.
void thin_loads(Json& intervals) {
  constexpr size_t kMost = 100;
  constexpr double kDigits = 1e4;
  const size_t stride = (intervals.size() + kMost - 1) / kMost;
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (stride > 1 && i % stride != 0) {
      intervals[i].erase("layers");
      continue;
    }
    Json& interval = intervals[i];
    if (!member(member(interval, "layers"), "moe/expert_load").is_object()) continue;
    for (Json& loads : interval["layers"]["moe/expert_load"]) {
      if (!loads.is_array()) continue;
      for (Json& load : loads) {
        if (load.is_number()) load = std::round(load.get<double>() * kDigits) / kDigits;
      }
    }
  }
}

}  // namespace

nlohmann::ordered_json read_metrics(const std::filesystem::path& jsonl) {
  Json metrics = {{"run", Json::object()}, {"runs", Json::array()}, {"restarts", 0},
                  {"first_time", nullptr}, {"last_time", nullptr},  {"columns", kColumns}};
  for (const std::string_view type : kEventTypes) metrics[type] = Json::array();
  int64_t events = 0;
  int64_t invalid = 0;
  for (const std::string& line : split(read_text(jsonl, {}), '\n')) {
    const Json event = Json::parse(line, nullptr, false);
    ++(event.is_object() ? events : invalid);
    if (event.is_object()) add_event(event, metrics);
  }
  metrics["invalid_lines"] = invalid;
  metrics["totals"] = step_totals(metrics["step"]);
  thin(metrics["step"]);
  thin(metrics["interval"]);
  thin_loads(metrics["interval"]);
  if (events == 0) {
    throw data_error({.what = "the file has no metrics events",
                      .where = jsonl.string(),
                      .fix = "Pass the metrics.jsonl of a training run"});
  }
  return metrics;
}

std::string render_report(const nlohmann::ordered_json& metrics) {
  std::string json;  // without "</script>" and "<!--", which would end or change the script element
  for (const char c : metrics.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    c == '<' ? json += "\\u003c" : json += c;
  }
  std::string page = kReportTemplate;
  constexpr std::string_view kPlace = "{{metrics}}";
  return page.replace(page.find(kPlace), kPlace.size(), json);
}

void write_report(const std::filesystem::path& jsonl, const std::filesystem::path& html) {
  write_text(html, render_report(read_metrics(jsonl)), ExitCode::config);
}

}  // namespace teratron
