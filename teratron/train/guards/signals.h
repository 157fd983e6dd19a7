// SIGTERM, SIGINT and SIGHUP request a save and stop at the next step boundary; a second one ends the process
// immediately (except SIGHUP, which a closing terminal may send several times).
#pragma once

#include <csignal>

namespace teratron {

/// Installs handlers for SIGTERM, SIGINT and, unless it is ignored (nohup), SIGHUP during its lifetime;
/// restores the former ones. One per process.
///
/// The first signal only sets a flag (async-signal-safe) and prints a line on a terminal. Ranks agree on it
/// at the step boundary, since a scheduler may signal only some of them; then the run saves and exits with
/// ExitCode::stopped (75). The second signal calls _exit(128 + signal) from the handler: nothing is saved,
/// the last commit remains.
class StopSignals {
 public:
  /// `announcement`: the line on the terminal, which must live as long as the program.
  explicit StopSignals(
      const char* announcement = "stopping after this step; once more ends immediately, without saving\n");
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
