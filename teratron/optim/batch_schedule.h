// The global batch size as a function of the samples consumed, and the micro-batches it makes.
//
//   constant   --global-batch-size
//   ramp       --rampup-batch-size START INCREMENT SAMPLES: START + INCREMENT * int(consumed / per_increment),
//              with per_increment = SAMPLES / ((global - START) / INCREMENT) in floating point,
//              until consumed > SAMPLES
//   steps      --step-batch-size-schedule "0:768 250B:1536": the size of the last threshold reached
//
// A global batch is microbatches * micro_batch_size * data_parallel_size samples. With
// --decrease-batch-size-if-needed it is rounded down to that product ("running"); otherwise it must be
// divisible. Semantics of Megatron-LM.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace teratron {

struct BatchLayout {
  int64_t micro_batch_size = 1;
  int64_t data_parallel_size = 1;
  bool decrease_if_needed = false;
};

struct BatchSize {
  int64_t global = 0;        // as scheduled
  int64_t running = 0;       // as consumed by a step
  int64_t microbatches = 0;  // per data-parallel rank
  bool operator==(const BatchSize&) const = default;
};

struct BatchRamp {
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;
};

/// From `samples` consumed on, steps take `global_batch_size`.
struct BatchStep {
  int64_t samples = 0;
  int64_t global_batch_size = 0;
  bool operator==(const BatchStep&) const = default;
};

/// "threshold:size ..." separated by blanks or commas; both numbers may be decimal and carry K, M, B or T
/// (10^3 to 10^12). With a sequence length the thresholds are tokens (rounded down to samples). The result is
/// sorted. UserError(config) unless thresholds start at 0, differ, and sizes are positive.
std::vector<BatchStep> parse_step_batch_size_schedule(std::string_view text,
                                                      std::optional<int64_t> seq_length);

class BatchSchedule {
 public:
  /// Each throws UserError(config) on sizes that can never work; divisibility along a ramp is
  /// require_divisible()'s.
  static BatchSchedule constant(int64_t global_batch_size, const BatchLayout& layout);
  static BatchSchedule ramp(const BatchRamp& ramp, int64_t global_batch_size, const BatchLayout& layout);
  static BatchSchedule steps(std::vector<BatchStep> steps, const BatchLayout& layout);

  /// The batch of the step that starts after `consumed` samples.
  BatchSize at(int64_t consumed) const;
  /// Whether that batch can be run: divisible (or rounded down) and at least one micro-batch.
  bool runs_at(int64_t consumed) const;
  /// Walks the whole schedule from `consumed` on, as training would. UserError(config) naming every size that
  /// does not divide, before training starts instead of in the middle of it.
  void require_divisible(int64_t consumed = 0) const;
  /// The size after the last change.
  int64_t final_global_batch_size() const;
  /// Whole steps that fit into `samples`, starting from none.
  int64_t iterations_for(int64_t samples) const;

 private:
  BatchSchedule(const BatchLayout& layout, std::vector<BatchStep> steps);
  int64_t scheduled(int64_t consumed) const;
  /// First sample count at which the size may differ from the one at `consumed`; nothing after the last
  /// change.
  std::optional<int64_t> next_change(int64_t consumed) const;

  BatchLayout layout_;
  int64_t divisor_ = 1;  // micro batch size * data-parallel size
  std::optional<BatchRamp> ramp_;
  double samples_per_increment_ = 0.0;
  std::vector<BatchStep> steps_;  // of a constant size or a ramp: the final size alone
};

}  // namespace teratron
