// Why and when a training stops before its planned end: signals, an autoresume file, --exit-interval,
// --exit-duration-in-mins, an observer.
#pragma once

#include <algorithm>
#include <filesystem>

#include "teratron/train/guards/signals.h"
#include "teratron/train/trainer.h"

namespace teratron {

class StopPolicy {
 public:
  /// Ordered by urgency: ranks agree on the maximum.
  enum class Reason : uint8_t { none, interval, duration, autoresume, signal };

  /// `start_time`: wall clock, of the rank that started first. Trainer and signals must outlive the policy.
  StopPolicy(const Trainer& trainer, const StopSignals& signals, double start_time)
      : trainer_(trainer), signals_(signals), start_time_(start_time) {}

  /// This rank's, before a step, for its end: a Reason, plus the number of the signal.
  int64_t request() const;
  /// The maximum of all ranks' requests (StepResult::stop_request).
  void agree(int64_t request);
  /// On all ranks.
  void stop(Reason reason) { reason_ = std::max(reason_, reason); }
  void stop_by_signal(int64_t signal);
  /// On this rank: the others stop with it after the next step.
  void observer_stopped() { observer_stopped_ = true; }
  bool has_observer_stopped() const { return observer_stopped_; }
  /// The signal that this rank received; 0: none.
  int signal_received() const { return signals_.received(); }
  /// A signal that is not agreed upon in time ends the process (StopSignals::end_unanswered).
  void step_took(double seconds) const { signals_.step_took(seconds); }
  StopSignals::Unhurried unhurried(StopSignals::Work work) const {
    return StopSignals::Unhurried(signals_, work);
  }

  Reason reason() const { return reason_; }
  bool stops() const { return reason_ != Reason::none; }
  /// The job is to be started again, to go on.
  bool is_to_be_restarted() const { return reason_ == Reason::signal || reason_ == Reason::autoresume; }
  /// "finished", "exit-interval"...: for metrics.
  const char* name() const;
  /// After the last save, on rank 0: prints why the run ends early and what becomes of it, and removes the
  /// autoresume file.
  void conclude() const;

 private:
  Reason planned() const;
  std::filesystem::path autoresume_file() const;
  void log_stop() const;

  const Trainer& trainer_;
  const StopSignals& signals_;
  double start_time_;
  Reason reason_ = Reason::none;
  int64_t signal_ = 0;  // its number; 0: none
  bool observer_stopped_ = false;
};

}  // namespace teratron
