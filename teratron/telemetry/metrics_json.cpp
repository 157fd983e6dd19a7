// The JSONL schema of docs/metrics.md; change both together.
#include <cmath>
#include <ctime>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "teratron/telemetry/metrics_logger.h"

namespace teratron {
namespace {

using Json = nlohmann::ordered_json;

/// Null for NaN and infinities. nlohmann dumps them as null anyway; this makes it explicit.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json losses_json(const Losses& losses) {
  Json object = Json::object();
  for (const auto& [name, value] : losses) object[name] = number(value);
  return object;
}

/// A number, or a list of several.
Json values_json(const std::vector<double>& values) {
  if (values.size() == 1) return number(values[0]);
  Json list = Json::array();
  for (const double value : values) list.push_back(number(value));
  return list;
}

/// "2026-01-31T12:00:00.123456Z", in UTC to compare logs of several machines.
std::string iso_time(double wall_time) {
  const auto micros_total = static_cast<int64_t>(std::llround(wall_time * 1e6));
  const auto seconds = static_cast<std::time_t>(micros_total / 1'000'000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, micros_total % 1'000'000);
}

struct Fields {
  Json& json;

  void operator()(const RunInfo& run) const {
    json["type"] = "run";
    json["run_id"] = run.run_id;
    json["train_iters"] = run.train_iters;
    json["start_iteration"] = run.start_iteration;
    json["world_size"] = run.world_size;
    json["peak_flops_per_gpu"] =
        run.peak_flops_per_gpu > 0.0 ? number(run.peak_flops_per_gpu) : Json(nullptr);
    json["facts"] = Json::object();
    for (const auto& [name, value] : run.facts) json["facts"][name] = value;
    json["arguments"] = Json::object();
    for (const auto& [name, value] : run.arguments) json["arguments"][name] = value;
  }

  void operator()(const StepMetrics& step) const {
    json["type"] = "step";
    common(step);
    json["skipped"] = step.skipped;
    json["seconds"] = number(step.seconds);
    json["tokens"] = step.tokens;
    json["flops"] = number(step.flops);
    json["flops_full"] = number(step.flops_full);
    if (step.memory) {
      json["memory"] = {{"allocated", step.memory->allocated},
                        {"max_allocated", step.memory->max_allocated},
                        {"reserved", step.memory->reserved},
                        {"max_reserved", step.memory->max_reserved}};
    }
  }

  void operator()(const IntervalMetrics& interval) const {
    json["type"] = "interval";
    common(interval.last);
    json["seconds_per_iteration"] = number(interval.seconds_per_iteration);
    json["advanced_iterations"] = interval.advanced;
    json["skipped_iterations"] = interval.skipped;
    json["nan_iterations"] = interval.nan;
    json["tokens_per_second"] = number(interval.tokens_per_second);
    json["tflops_per_gpu"] = number(interval.tflops_per_gpu);
    json["mfu"] = interval.mfu > 0.0 ? number(interval.mfu) : Json(nullptr);
    json["tflops_per_gpu_full"] = number(interval.tflops_per_gpu_full);
    json["mfu_full"] = interval.mfu_full > 0.0 ? number(interval.mfu_full) : Json(nullptr);
    for (const LayerMetric& metric : interval.last.layers)
      json["layers"][metric.name][std::to_string(metric.layer)] = values_json(metric.values);
  }

  void operator()(const EvalMetrics& evaluation) const {
    json["type"] = "evaluation";
    json["iteration"] = evaluation.iteration;
    json["consumed_samples"] = evaluation.consumed_samples;
    json["split"] = evaluation.split;
    json["losses"] = losses_json(evaluation.losses);
    for (const auto& [name, mean] : evaluation.metrics) json["losses"][name] = number(mean);
    json["perplexity"] = Json::object();
    for (const auto& [name, loss] : evaluation.losses) {
      if (evaluation.has_perplexity) json["perplexity"][name] = number(perplexity(loss));
    }
    json["seconds"] = number(evaluation.seconds);
    if (evaluation.repeated) json["repeated"] = true;
  }

  void operator()(const SaveMetrics& save) const {
    json["type"] = "save";
    json["iteration"] = save.iteration;
    json["directory"] = save.directory;
    json["seconds"] = number(save.seconds);
    json["bytes"] = save.bytes;
  }

  void operator()(const SampleText& sample) const {
    json["type"] = "sample";
    json["iteration"] = sample.iteration;
    json["prompt"] = sample.prompt;
    json["text"] = sample.text;
  }

  void operator()(const ScoreMetrics& score) const {
    json["type"] = "score";
    json["model"] = score.model;
    json["data"] = score.data;
    json["figures"] = losses_json(score.figures);
  }

  void operator()(const TimerMetrics& timers) const {
    json["type"] = "timers";
    json["iteration"] = timers.iteration;
    json["milliseconds"] = Json::object();
    for (const auto& row : timers.rows) {
      json["milliseconds"][row.name] = {{"min", number(row.min_ms)}, {"max", number(row.max_ms)}};
      if (!row.per_rank_ms.empty()) json["milliseconds"][row.name]["per_rank"] = row.per_rank_ms;
    }
  }

  void operator()(const EndMetrics& end) const {
    json["type"] = "end";
    json["iteration"] = end.iteration;
    json["reason"] = end.reason;
    json["seconds"] = number(end.seconds);
  }

 private:
  void common(const StepMetrics& step) const {
    json["iteration"] = step.iteration;
    json["consumed_samples"] = step.consumed_samples;
    if (step.skipped_samples > 0) json["skipped_samples"] = step.skipped_samples;
    json["global_batch_size"] = step.global_batch_size;
    json["learning_rate"] = number(step.learning_rate);
    if (step.decoupled_learning_rate) json["decoupled_learning_rate"] = number(*step.decoupled_learning_rate);
    json["losses"] = losses_json(step.losses);
    json["loss_scale"] = number(step.loss_scale);
    if (step.grad_norm) json["grad_norm"] = number(*step.grad_norm);
    if (step.num_zeros) json["num_zeros"] = *step.num_zeros;
    if (step.params_norm) json["params_norm"] = number(*step.params_norm);
  }
};

}  // namespace

nlohmann::ordered_json to_json(const MetricsEvent& event) {
  Json json = Json::object();
  json["type"] = "";
  json["time"] = iso_time(event.wall_time);
  std::visit(Fields{json}, event.data);
  return json;
}

}  // namespace teratron
