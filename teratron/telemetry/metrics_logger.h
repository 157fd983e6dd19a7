// Writes the events of metrics.h to the console (log lines on stdout), metrics.jsonl (one JSON object per
// event; the schema is docs/metrics.md) and TensorBoard (Megatron-LM's tags). A writer that fails is dropped
// after one warning; it never stops or slows down training.
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

class MetricsWriter {
 public:
  virtual ~MetricsWriter() = default;
  /// May throw; MetricsLogger handles it.
  virtual void write(const MetricsEvent& event) = 0;
};

struct ConsoleOptions {
  bool short_format = false;  // --log-format short
  bool log_throughput = false;
  TimingOption timing = TimingOption::minmax;
  std::function<void(std::string_view)> print;  // default: print_line
};
std::unique_ptr<MetricsWriter> console_writer(ConsoleOptions options);

/// Appends to the file; calls `saved` after the event of a save. UserError(config) if it cannot be created.
std::unique_ptr<MetricsWriter> jsonl_writer(const std::filesystem::path& path,
                                            std::function<void()> saved = nullptr);
/// The object that jsonl_writer writes; NaN and infinities become null.
nlohmann::ordered_json to_json(const MetricsEvent& event);

struct TensorBoardOptions {
  int64_t log_interval = 1;   // --tensorboard-log-interval
  bool learning_rate = true;  // --log-learning-rate-to-tensorboard, and so on
  bool loss_scale = true;
  bool timers = true;
  bool validation_ppl = true;
  bool memory = true;
  bool world_size = false;
};
/// UserError(config) if the directory cannot be created.
std::unique_ptr<MetricsWriter> tensorboard_writer(const std::filesystem::path& directory,
                                                  const TensorBoardOptions& options = {});

/// Passes every event to all writers. Synchronous writers are called directly; an asynchronous one has its
/// own thread and a queue of `queue_limit` events: while a file system hangs, events are dropped (with one
/// warning) and training continues.
class MetricsLogger {
 public:
  explicit MetricsLogger(size_t queue_limit = 8192) : queue_limit_(queue_limit) {}
  ~MetricsLogger();
  MetricsLogger(const MetricsLogger&) = delete;
  MetricsLogger& operator=(const MetricsLogger&) = delete;

  void add_sync(std::string name, std::unique_ptr<MetricsWriter> writer);
  void add_async(std::string name, std::unique_ptr<MetricsWriter> writer);
  /// Does not throw when a writer fails.
  void log(const MetricsEvent& event);
  /// Waits up to `seconds` per asynchronous writer until its queue is written; false on time-out.
  bool flush(double seconds = 5.0);
  /// Number of events that were not written.
  int64_t dropped() const;

  class AsyncWriter;  // a writer and its queue

 private:
  struct SyncWriter {
    std::string name;
    std::unique_ptr<MetricsWriter> writer;
  };
  size_t queue_limit_;
  std::vector<SyncWriter> sync_;
  std::vector<std::shared_ptr<AsyncWriter>> async_;
  int64_t dropped_sync_ = 0;
};

/// Seconds since 1970, for MetricsEvent.
double wall_clock();

}  // namespace teratron
