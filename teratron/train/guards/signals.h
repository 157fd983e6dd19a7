// SIGTERM, SIGINT and SIGHUP request a save and stop at the next step boundary; a second one ends the process
// immediately (except SIGHUP, which a closing terminal may send several times).
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>

namespace teratron {

/// Installs handlers for SIGTERM, SIGINT and, unless it is ignored (nohup), SIGHUP during its lifetime;
/// restores the former ones, but leaves SIGHUP ignored after it came. One per process.
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
  /// For a program that has its own handlers: installs none, and nothing is ever received.
  struct Unhandled {};
  explicit StopSignals(Unhandled);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that arrived, or 0.
  int received() const;

  /// From now on a signal that is not answered() ends the process: `end` is called, and must end it, after
  /// `patience`, or three times the last step if that is longer. No step ends where ranks wait for one that
  /// is stuck, for a disk or for a GPU.
  void end_unanswered(std::function<void(int signal)> end,
                      std::chrono::milliseconds patience = std::chrono::seconds(10));
  /// How long the last step took.
  void step_took(double seconds) const;
  /// The signal is acted upon: no deadline holds any more.
  void answered() const;
  /// Work between steps, whose time is not that of a step.
  enum class Work : uint8_t {
    open_ended,  // takes as long as it takes
    save,        // about as long as the saves before it
    async_save   // waits for a save in the background, for an unknown time
  };
  /// While one lives, the time of steps does not run. A save that hangs ends the process too, answered or
  /// not: after twice the patience from the signal, or three times the longest save before it if that is
  /// longer. The first save and those in the background have thirty times the patience.
  class Unhurried {
   public:
    explicit Unhurried(const StopSignals& signals, Work work = Work::open_ended);
    ~Unhurried();
    Unhurried(const Unhurried&) = delete;
    Unhurried& operator=(const Unhurried&) = delete;

   private:
    const StopSignals& signals_;
    Work work_;
  };

 private:
  class Deadline;

  bool handles_ = false;
  struct sigaction old_term_{};
  struct sigaction old_int_{};
  struct sigaction old_hangup_{};
  std::unique_ptr<Deadline> deadline_;  // of end_unanswered(); null: none
};

}  // namespace teratron
