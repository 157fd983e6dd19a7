// Whether micro-batches are replayed as CUDA graphs (--cuda-graph-impl auto): only where the GPU waits for
// the host, which shows in the first steps, and only if it makes steps shorter.
//
//   watch     the first steps run eagerly; after each, the ranks' votes say whether any GPU waited
//   try       if most did, the next steps go through graphs
//   settle    graphs stay if these steps took less time, else the rest of the run is eager
//
// All ranks change at the same step, since they see the same votes: a step with graphs issues its collectives
// in another order. A result may arrive any number of steps after its launch.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace teratron {

class GraphChoice {
 public:
  /// In ascending order: the maximum over the ranks counts.
  enum class Vote : uint8_t { none, gpu_waits, no_memory, slower };

  /// What a rank saw when it had launched a step's forward and backward and its optimizer.
  struct Observation {
    bool gpu_waited = false;  // forward and backward were already done
    bool has_memory = true;   // for the graphs' own pool
  };

  struct Outcome {
    enum class Kind : uint8_t { kept, no_memory, slower };
    Kind kind = Kind::kept;
    double seconds_before = 0.0;  // per step, medians
    double seconds_after = 0.0;   // 0: not tried
  };

  /// Decides by `watched` steps, and by as many with graphs.
  explicit GraphChoice(int64_t watched);

  /// Whether the next step goes through graphs.
  bool replays() const {
    return phase_ == Phase::trying || phase_ == Phase::judging || phase_ == Phase::kept;
  }
  /// Whether launch() needs observations of the next step.
  bool watches() const { return phase_ == Phase::watching; }
  /// Called once per step, after its launch; returns this rank's vote.
  Vote launch(const Observation& seen);
  /// Called once per step, in order, with the maximum of the votes and the step's time; returns the outcome
  /// once, unless the GPU does not wait.
  std::optional<Outcome> finish(Vote agreed, double seconds);

 private:
  enum class Phase : uint8_t { watching, trying, judging, kept, eager };
  std::optional<Outcome> watch(Vote agreed, double seconds);
  void measure(double seconds);
  Outcome judge(Vote agreed);

  int64_t watched_;
  Phase phase_ = Phase::watching;
  std::deque<Phase> in_flight_;  // phases of launched steps without result
  int64_t results_ = 0;          // in this phase
  int64_t waits_ = 0;
  bool has_memory_ = true;
  std::vector<double> before_, after_;
};

/// "the GPU waited for the host, so micro-batches are replayed as CUDA graphs: 16.3 ms per step instead of
/// 40.0".
std::string to_string(const GraphChoice::Outcome& outcome);

}  // namespace teratron
