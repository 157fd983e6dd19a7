#include <chrono>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/tensorboard.h"

namespace teratron {
namespace {

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};

// In Markdown.
std::string table(const RunInfo::Rows& rows) {
  std::string text = "| | |\n|---|---|\n";
  for (const auto& [name, value] : rows) {
    std::string cell;
    for (const char c : value) cell += c == '|' ? "\\|" : std::string(1, c);
    text += "| " + name + " | " + cell + " |\n";
  }
  return text;
}

class ConsoleWriter : public MetricsWriter {
 public:
  explicit ConsoleWriter(ConsoleOptions options) : options_(std::move(options)) {
    if (!options_.print) options_.print = print_line;
  }

  void write(const MetricsEvent& event) override {
    std::visit(Overloaded{[&](const RunInfo& run) { train_iters_ = run.train_iters; },
                          [&](const IntervalMetrics& interval) { step(interval, event.wall_time); },
                          [&](const EvalMetrics& evaluation) { evaluate(evaluation); },
                          [&](const TimerMetrics& timers) {
                            for (const auto& line : timer_lines(timers, options_.timing))
                              options_.print(line);
                          },
                          [](const auto&) {}},
               event.data);
  }

 private:
  void step(const IntervalMetrics& interval, double wall_time) {
    const StepLineOptions line = {
        .train_iters = train_iters_, .wall_time = wall_time, .log_throughput = options_.log_throughput};
    options_.print(options_.short_format ? short_step_line(interval, line)
                                         : megatron_step_line(interval, line));
  }

  void evaluate(const EvalMetrics& evaluation) {
    if (evaluation.is_told) return;
    if (options_.short_format) {
      options_.print(short_evaluation_line(evaluation));
      return;
    }
    for (const std::string& line : evaluation_lines(evaluation)) options_.print(line);
  }

  ConsoleOptions options_;
  int64_t train_iters_ = 0;
};

class JsonlWriter : public MetricsWriter {
 public:
  JsonlWriter(const std::filesystem::path& path, std::function<void()> saved)
      : file_(File::append(path, ExitCode::config)), saved_(std::move(saved)) {}

  void write(const MetricsEvent& event) override {
    file_.write(to_json(event).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    if (saved_ && std::holds_alternative<SaveMetrics>(event.data)) saved_();
  }

 private:
  File file_;
  std::function<void()> saved_;
};

class TensorBoardWriter : public MetricsWriter {
 public:
  TensorBoardWriter(const std::filesystem::path& directory, const TensorBoardOptions& options)
      : writer_(directory, wall_clock()), options_(options) {}

  void write(const MetricsEvent& event) override {
    const double time = event.wall_time;
    std::visit(
        Overloaded{[&](const RunInfo& run) { facts(run, time); },
                   [&](const StepMetrics& step) { this->step(step, time); },
                   [&](const IntervalMetrics& interval) { this->interval(interval, time); },
                   [&](const EvalMetrics& evaluation) { evaluate(evaluation, time); },
                   [&](const SampleText& sample) {
                     writer_.text("samples", "**" + sample.prompt + "**" + sample.text, sample.iteration,
                                  time);
                   },
                   [&](const TimerMetrics& timers) { this->timers(timers, time); }, [](const auto&) {}},
        event.data);
  }

 private:
  void facts(const RunInfo& run, double time) {
    writer_.text("run", table(run.facts), run.start_iteration, time);
    writer_.text("arguments", table(run.arguments), run.start_iteration, time);
    world_size_ = run.world_size;
  }

  void timers(const TimerMetrics& timers, double time) {
    EventFileWriter::Scalars points;
    for (const auto& row : timers.rows) points.emplace_back(row.name + "-time", row.max_ms / 1e3);
    if (options_.timers && !points.empty()) writer_.scalars(points, timers.iteration, time);
  }

  void step(const StepMetrics& step, double time) {
    if (step.iteration % options_.log_interval != 0) return;
    EventFileWriter::Scalars points = {{"batch-size", double(step.global_batch_size)}};
    if (options_.learning_rate) {
      points.emplace_back("learning-rate", step.learning_rate);
      if (step.decoupled_learning_rate) {
        points.emplace_back("decoupled-learning-rate", *step.decoupled_learning_rate);
      }
    }
    for (const auto& loss : step.losses) points.push_back(loss);
    if (options_.loss_scale) points.emplace_back("loss-scale", step.loss_scale);
    if (step.grad_norm) points.emplace_back("grad-norm", *step.grad_norm);
    if (step.num_zeros) points.emplace_back("num-zeros", double(*step.num_zeros));
    if (step.params_norm) points.emplace_back("params-norm", *step.params_norm);
    EventFileWriter::Scalars by_samples;
    for (const auto& [tag, value] : points) by_samples.emplace_back(tag + " vs samples", value);
    if (step.skipped_samples > 0) points.emplace_back("skipped-train-samples", double(step.skipped_samples));
    if (options_.world_size) points.emplace_back("world-size", double(world_size_));
    if (options_.memory && step.memory) {
      points.emplace_back("mem-reserved-bytes", double(step.memory->reserved));
      points.emplace_back("mem-allocated-bytes", double(step.memory->allocated));
      points.emplace_back("mem-max-allocated-bytes", double(step.memory->max_allocated));
    }
    writer_.scalars(points, step.iteration, time);
    writer_.scalars(by_samples, step.consumed_samples, time);
  }

  void interval(const IntervalMetrics& interval, double time) {
    EventFileWriter::Scalars points = {{"iteration-time", interval.seconds_per_iteration},
                                       {"tokens-per-second", interval.tokens_per_second}};
    if (interval.tflops_per_gpu > 0.0) points.emplace_back("throughput", interval.tflops_per_gpu);
    if (interval.mfu > 0.0) points.emplace_back("mfu", interval.mfu);
    for (const LayerMetric& metric : interval.last.layers) {
      const std::string tag = fmt::format("{}_layer_{}", metric.name, metric.layer);
      for (size_t i = 0; i < metric.values.size(); ++i)
        points.emplace_back(metric.values.size() == 1 ? tag : fmt::format("{}_expert_{}", tag, i),
                            metric.values[i]);
    }
    writer_.scalars(points, interval.last.iteration, time);
  }

  void evaluate(const EvalMetrics& evaluation, double time) {
    if (evaluation.repeated) return;  // a curve has one point per iteration
    EventFileWriter::Scalars points;
    for (const auto& [name, mean] : evaluation.metrics)
      points.emplace_back(name + " " + evaluation.split, mean);
    for (const auto& [name, loss] : evaluation.losses) {
      points.emplace_back(name + " " + evaluation.split, loss);
      if (!options_.validation_ppl || !evaluation.has_perplexity) continue;
      points.emplace_back(name + " " + evaluation.split + " ppl", perplexity(loss));
    }
    if (points.empty()) return;
    writer_.scalars(points, evaluation.iteration, time);
    for (auto& point : points) point.first += " vs samples";
    writer_.scalars(points, evaluation.consumed_samples, time);
  }

  EventFileWriter writer_;
  TensorBoardOptions options_;
  int64_t world_size_ = 1;
};

}  // namespace

std::unique_ptr<MetricsWriter> console_writer(ConsoleOptions options) {
  return std::make_unique<ConsoleWriter>(std::move(options));
}

std::unique_ptr<MetricsWriter> jsonl_writer(const std::filesystem::path& path, std::function<void()> saved) {
  return std::make_unique<JsonlWriter>(path, std::move(saved));
}

std::unique_ptr<MetricsWriter> tensorboard_writer(const std::filesystem::path& directory,
                                                  const TensorBoardOptions& options) {
  return std::make_unique<TensorBoardWriter>(directory, options);
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace teratron
