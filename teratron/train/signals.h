// SIGTERM and SIGINT ask a run to save and stop at the next step boundary; a second one ends the process at
// once.
#pragma once

#include <csignal>

namespace teratron {

/// Installs handlers for SIGTERM and SIGINT while it lives and puts the former ones back. One per process.
///
/// The first signal only sets a flag (async-signal-safe) and says so on a terminal. All ranks agree on it at the step boundary, since a
/// scheduler may signal only some of them; then the run saves and exits with ExitCode::stopped (75). The
/// second signal calls _exit(128 + signal) from the handler: nothing is saved, and the last commit stands.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that arrived, or 0.
  int received() const;

 private:
  struct sigaction old_term_{};
  struct sigaction old_int_{};
};

}  // namespace teratron
