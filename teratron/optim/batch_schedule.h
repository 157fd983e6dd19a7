// The global batch size as a function of consumed samples, and its division into micro-batches.
//
//   constant   --global-batch-size
//   ramp       --rampup-batch-size START INCREMENT SAMPLES: START + INCREMENT * int(consumed / per_increment)
//              with per_increment = SAMPLES / ((global - START) / INCREMENT) in floating point, until
//              consumed > SAMPLES
//   steps      --step-batch-size-schedule "0:768 250B:1536": the size of the last threshold reached
//
// A global batch has microbatches * micro_batch_size * data_parallel_size samples. With
// --decrease-batch-size-if-needed it is rounded down to a multiple of micro_batch_size * data_parallel_size
// ("running"); otherwise it must be divisible. Semantics of Megatron-LM.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace teratron {

struct BatchSplit {
  int64_t micro_batch_size = 1;
  int64_t data_parallel_size = 1;
  bool decrease_if_needed = false;
};

struct BatchSize {
  int64_t global = 0;        // as scheduled
  int64_t running = 0;       // consumed per step
  int64_t microbatches = 0;  // per data-parallel rank
  bool operator==(const BatchSize&) const = default;
};

struct BatchRamp {
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;
};

/// `global_batch_size` once `samples` are consumed.
struct BatchStep {
  int64_t samples = 0;
  int64_t global_batch_size = 0;
  bool operator==(const BatchStep&) const = default;
};

/// "threshold:size ..." separated by blanks or commas; both numbers may be decimal and have a suffix K, M, B
/// or T (10^3 to 10^12). With a sequence length the thresholds are tokens, rounded down to samples. Sorted.
/// UserError(config) unless thresholds start at 0 and differ, and sizes are positive.
std::vector<BatchStep> parse_step_batch_size_schedule(std::string_view text,
                                                      std::optional<int64_t> seq_length);

class BatchSchedule {
 public:
  // UserError(config) for sizes that can never work; require_divisible() checks divisibility along a ramp.
  static BatchSchedule constant(int64_t global_batch_size, const BatchSplit& split);
  static BatchSchedule ramp(const BatchRamp& ramp, int64_t global_batch_size, const BatchSplit& split);
  static BatchSchedule steps(std::vector<BatchStep> steps, const BatchSplit& split);

  /// The batch of the step that starts after `consumed` samples.
  BatchSize at(int64_t consumed) const;
  /// Whether that batch is divisible (or rounded down) and has at least one micro-batch.
  bool runs_at(int64_t consumed) const;
  /// Checks the whole schedule from `consumed` on. UserError(config) with every size that is not divisible,
  /// before training starts instead of in the middle.
  void require_divisible(int64_t consumed = 0) const;
  /// The batch after the last change.
  BatchSize last() const { return divided(steps_.back().global_batch_size); }
  /// Whole steps within `samples` that are left after `consumed` of them.
  int64_t iterations_for(int64_t samples, int64_t consumed = 0) const;
  /// Samples consumed after this many steps more; INT64_MAX if there are more than that.
  int64_t consumed_after(int64_t iterations, int64_t consumed = 0) const;

 private:
  BatchSchedule(const BatchSplit& split, std::vector<BatchStep> steps);
  int64_t scheduled(int64_t consumed) const;
  BatchSize divided(int64_t global) const;
  /// First sample count at which the size may differ from that at `consumed`; nullopt after the last change.
  std::optional<int64_t> next_change(int64_t consumed) const;

  BatchSplit split_;
  int64_t divisor_ = 1;  // micro-batch size * data-parallel size
  std::optional<BatchRamp> ramp_;
  double samples_per_increment_ = 0.0;
  std::vector<BatchStep> steps_;  // constant or ramp: only the final size
};

}  // namespace teratron
