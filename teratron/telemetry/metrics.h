// Metrics events of a run, and the accumulator behind the log line. The last rank creates them, as in
// Megatron-LM; metrics_logger.h writes them to the console, a JSONL file and TensorBoard. All values are on
// the host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "teratron/device/memory_use.h"

namespace teratron {

/// Named losses in reporting order: {"lm loss", 2.4}, {"sop loss", 0.6}.
using Losses = std::vector<std::pair<std::string, double>>;

/// The run's description; world size and peak FLOP/s convert times to throughput.
struct RunInfo {
  std::string run_id;
  using Rows = std::vector<std::pair<std::string, std::string>>;
  Rows facts;      // the summary, in reading order: "model" -> "GPT, 345M parameters"
  Rows arguments;  // all settings, formatted as in the listing at the start
  int64_t train_iters = 0;
  int64_t world_size = 1;
  int64_t start_iteration = 0;      // > 0: resumed
  double peak_flops_per_gpu = 0.0;  // 0: unknown, so no MFU
};

/// What a layer of the model measured: one number, or one per expert.
struct LayerMetric {
  std::string name;  // "moe/expert_load"
  int64_t layer = 0;
  std::vector<double> values;
};

/// One training step.
struct StepMetrics {
  int64_t iteration = 0;  // of the completed step, from 1
  int64_t consumed_samples = 0;
  int64_t skipped_samples = 0;  // --iterations-to-skip, in samples
  int64_t global_batch_size = 0;
  double learning_rate = 0.0;
  std::optional<double> decoupled_learning_rate = std::nullopt;  // --decoupled-lr
  Losses losses;
  double loss_scale = 1.0;
  std::optional<double> grad_norm;
  std::optional<int64_t> num_zeros;
  std::optional<double> params_norm;
  bool skipped = false;         // no update: overflow or NaN
  double seconds = 0.0;         // host time
  double device_seconds = 0.0;  // device time, from the end of the previous step to the end of this one
  int64_t tokens = 0;           // of the global batch
  double flops = 0.0;           // of the global batch, causal convention (flops.h)
  double flops_full = 0.0;      // full convention
  std::optional<MemoryUse> memory = std::nullopt;  // device memory of the reporting rank
  std::vector<LayerMetric> layers = {};
};

/// Averages over the steps since the last log line.
struct IntervalMetrics {
  StepMetrics last;  // its losses are averaged over non-skipped steps
  double seconds_per_iteration = 0.0;
  int64_t advanced = 0;
  int64_t skipped = 0;
  int64_t nan = 0;  // skipped steps whose loss was NaN or infinite
  double tokens_per_second = 0.0;
  double tflops_per_gpu = 0.0;       // causal convention (flops.h)
  double mfu = 0.0;                  // 0 if the peak is unknown
  double tflops_per_gpu_full = 0.0;  // full convention
  double mfu_full = 0.0;
};

struct EvalMetrics {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  std::string split = "validation";  // or "test"
  std::string prefix;                // as logged: "iteration 100", "iteration 100 on validation set"
  Losses losses;                     // averages over tokens
  Losses metrics = {};               // of a custom train step; they have no perplexity
  bool has_perplexity = true;        // the losses are negative log likelihoods
  bool is_told = false;              // the console has a line of it already
  double seconds = 0.0;
  bool repeated = false;  // this iteration was evaluated before, on the samples of the split before these
};

struct SaveMetrics {
  int64_t iteration = 0;
  std::string directory;
  double seconds = 0.0;
  int64_t bytes = 0;
};

/// A generated sample.
struct SampleText {
  int64_t iteration = 0;
  std::string prompt;
  std::string text;  // continuation, without the prompt
};

/// Figures of an evaluation by `teratron eval`.
struct ScoreMetrics {
  std::string model;  // what was evaluated: the name of its folder
  std::string data;
  Losses figures;
};

/// Average milliseconds per iteration of named timers: minimum and maximum over the ranks.
struct TimerMetrics {
  struct Row {
    std::string name;
    double min_ms = 0.0;
    double max_ms = 0.0;
    std::vector<double> per_rank_ms = {};  // of the ranks that have this timer, in rank order
  };
  int64_t iteration = 0;
  std::vector<Row> rows;
};

/// The last event of a run that did not crash.
struct EndMetrics {
  int64_t iteration = 0;
  std::string reason;  // "finished", "exit-interval", "signal"...
  double seconds = 0.0;
};

struct MetricsEvent {
  double wall_time = 0.0;  // seconds since 1970
  std::variant<RunInfo, StepMetrics, IntervalMetrics, EvalMetrics, SaveMetrics, SampleText, ScoreMetrics,
               TimerMetrics, EndMetrics>
      data;
};

/// exp(min(20, loss)), as in Megatron-LM.
double perplexity(double loss);

/// Accumulates steps for a log line by Megatron-LM's rules: losses are averaged over non-skipped steps, a
/// step counts as NaN only if it was skipped, and time is averaged over all steps.
class IntervalMeter {
 public:
  explicit IntervalMeter(const RunInfo& run) : world_size_(run.world_size), peak_(run.peak_flops_per_gpu) {}

  void add(const StepMetrics& step);
  /// Steps since the last reset.
  int64_t steps() const { return advanced_ + skipped_; }
  /// Requires at least one step.
  IntervalMetrics means() const;
  void reset();

 private:
  int64_t world_size_;
  double peak_;
  StepMetrics last_;
  Losses sums_;
  int64_t advanced_ = 0;
  int64_t skipped_ = 0;
  int64_t nan_ = 0;
  double seconds_ = 0.0;
  double tokens_ = 0.0;
  double flops_ = 0.0;
  double flops_full_ = 0.0;
};

}  // namespace teratron
