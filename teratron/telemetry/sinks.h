// Where the events of metrics.h go. A sink that fails is dropped after one warning; it never stops or slows
// training.
//
//   ConsoleSink      log lines to stdout (the caller makes one on the logging rank only)
//   JsonlSink        one JSON object per event; the schema is docs/metrics.md
//   TensorBoardSink  Megatron-LM's tags
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "teratron/telemetry/log_lines.h"
#include "teratron/telemetry/metrics.h"

namespace teratron {

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  /// Throws whatever goes wrong; MetricsHub deals with it.
  virtual void write(const MetricsEvent& event) = 0;
};

struct ConsoleOptions {
  bool short_format = false;  // --log-format short
  bool log_throughput = false;
  TimingOption timing = TimingOption::minmax;
  std::function<void(std::string_view)> print;  // print_line unless given
};
std::unique_ptr<MetricsSink> console_sink(ConsoleOptions options);

/// Appends to the file. UserError(config) where it cannot be created.
std::unique_ptr<MetricsSink> jsonl_sink(const std::filesystem::path& path);
/// The object that jsonl_sink writes: numbers that JSON lacks (NaN, infinities) become null.
nlohmann::ordered_json to_json(const MetricsEvent& event);

struct TensorBoardOptions {
  int64_t log_interval = 1;   // --tensorboard-log-interval
  bool learning_rate = true;  // --log-learning-rate-to-tensorboard and its brothers
  bool loss_scale = true;
  bool timers = true;
  bool validation_ppl = true;
  bool memory = true;
  bool world_size = false;
};
/// UserError(config) where the directory cannot be created.
std::unique_ptr<MetricsSink> tensorboard_sink(const std::filesystem::path& directory,
                                              const TensorBoardOptions& options = {});

/// Hands every event to all sinks. Console sinks are called at once; the others in a thread of their own,
/// behind a queue of `queue_limit` events each: while a file system hangs, events are dropped (with one
/// warning) and training goes on.
class MetricsHub {
 public:
  explicit MetricsHub(size_t queue_limit = 8192) : queue_limit_(queue_limit) {}
  ~MetricsHub();
  MetricsHub(const MetricsHub&) = delete;
  MetricsHub& operator=(const MetricsHub&) = delete;

  void add_now(std::string name, std::unique_ptr<MetricsSink> sink);
  void add_background(std::string name, std::unique_ptr<MetricsSink> sink);
  /// Never throws for a sink's sake.
  void emit(const MetricsEvent& event);
  /// Waits until the background sinks have written everything, at most so long. False: some have not.
  bool flush(double seconds = 5.0);
  /// Events that could not be delivered so far.
  int64_t dropped() const;

  class Channel;  // a sink, its queue and its thread

 private:
  struct Direct {
    std::string name;
    std::unique_ptr<MetricsSink> sink;
  };
  size_t queue_limit_;
  std::vector<Direct> direct_;
  std::vector<std::shared_ptr<Channel>> channels_;
  int64_t lost_direct_ = 0;
};

/// Seconds since 1970, for MetricsEvent.
double wall_clock();

}  // namespace teratron
