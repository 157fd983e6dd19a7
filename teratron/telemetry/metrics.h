// What a run tells the world: typed events, and the accumulator behind the log line.
//
// One producer (the last rank, as in Megatron-LM) makes events; sinks.h writes them to the console, a JSONL
// file and TensorBoard. All values here are host numbers; whoever fills them has already read them off the
// device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace teratron {

/// Named losses in the order in which they are reported: {"lm loss", 2.4}, {"sop loss", 0.6}.
using Losses = std::vector<std::pair<std::string, double>>;

/// Device memory of the reporting rank, in bytes.
struct MemoryUse {
  int64_t allocated = 0;
  int64_t max_allocated = 0;
  int64_t reserved = 0;
  int64_t max_reserved = 0;
};

/// What the reader of a run wants to know first; the numbers turn times into throughput.
struct RunFacts {
  std::string run_id;
  std::vector<std::pair<std::string, std::string>>
      facts;  // "model" -> "GPT, 345M parameters", in reading order
  std::vector<std::pair<std::string, std::string>>
      arguments;  // every setting, as the listing at the start shows it
  int64_t train_iters = 0;
  int64_t world_size = 1;
  int64_t start_iteration = 0;      // > 0: resumed
  double peak_flops_per_gpu = 0.0;  // 0: unknown, then no MFU
};

/// One training step.
struct StepMetrics {
  int64_t iteration = 0;  // of the step just done, from 1
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
  bool skipped = false;         // no update: overflow, NaN
  double seconds = 0.0;         // as the host saw it
  double device_seconds = 0.0;  // from the end of the step before to its own, where the work is done
  int64_t tokens = 0;           // of the global batch
  double flops = 0.0;           // of the global batch, by the causal convention (flops.h)
  double flops_full = 0.0;      // by the full convention
  std::optional<MemoryUse> memory = std::nullopt;
};

/// Means over the steps since the last log line.
struct IntervalMetrics {
  StepMetrics last;  // its losses are the means over non-skipped steps
  double seconds_per_iteration = 0.0;
  int64_t advanced = 0;
  int64_t skipped = 0;
  int64_t nan = 0;  // skipped steps whose loss was NaN or infinite
  double tokens_per_second = 0.0;
  double tflops_per_gpu = 0.0;       // causal convention (flops.h)
  double mfu = 0.0;                  // 0 where the peak is unknown
  double tflops_per_gpu_full = 0.0;  // full convention
  double mfu_full = 0.0;
};

struct EvalMetrics {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  std::string split = "validation";  // or "test"
  std::string prefix;                // as logged: "iteration 100", "iteration 100 on validation set"
  Losses losses;                     // means over tokens
  double seconds = 0.0;
};

struct SaveMetrics {
  int64_t iteration = 0;
  std::string directory;
  double seconds = 0.0;
  int64_t bytes = 0;
};

/// A text that the model generated.
struct SampleText {
  int64_t iteration = 0;
  std::string prompt;
  std::string text;  // continuation, without the prompt
};

/// Mean milliseconds per iteration of named timers: least and greatest over the ranks.
struct TimerMetrics {
  struct Row {
    std::string name;
    double min_ms = 0.0;
    double max_ms = 0.0;
    std::vector<double> per_rank_ms = {};  // of the ranks that have this timer, in order
  };
  int64_t iteration = 0;
  std::vector<Row> rows;
};

/// The last event of a run that ended in order.
struct EndMetrics {
  int64_t iteration = 0;
  std::string reason;  // "finished", "exit-interval", "signal"...
  double seconds = 0.0;
};

struct MetricsEvent {
  double wall_time = 0.0;  // seconds since 1970
  std::variant<RunFacts, StepMetrics, IntervalMetrics, EvalMetrics, SaveMetrics, SampleText, TimerMetrics,
               EndMetrics>
      what;
};

/// exp(min(20, loss)), as Megatron-LM reports perplexity.
double perplexity(double loss);

/// Gathers steps into the numbers of a log line, by Megatron-LM's rules: losses are averaged over the steps
/// that were not skipped; a step counts as NaN only if it was skipped; time is averaged over all of them.
class IntervalMeter {
 public:
  explicit IntervalMeter(const RunFacts& run) : world_size_(run.world_size), peak_(run.peak_flops_per_gpu) {}

  void add(const StepMetrics& step);
  /// Steps since the last reset.
  int64_t steps() const { return advanced_ + skipped_; }
  /// At least one step must have been added.
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
