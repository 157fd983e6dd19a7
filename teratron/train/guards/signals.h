// SIGTERM, SIGINT and SIGHUP ask a run to save and stop at the next step boundary; a second one ends the process at
// once (but not SIGHUP, which a terminal that is closed may send several times).
#pragma once

#include <csignal>

namespace teratron {

/// Installs handlers for SIGTERM, SIGINT and, unless it is ignored (nohup), SIGHUP while it lives and puts the former ones
/// back. One per process.
///
/// The first signal only sets a flag (async-signal-safe) and says so on a terminal. All ranks agree on it at the step
/// boundary, since a scheduler may signal only some of them; then the run saves and exits with ExitCode::stopped (75). The
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
  struct sigaction old_hangup_{};
};

}  // namespace teratron
