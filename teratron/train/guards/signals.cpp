#include "teratron/train/guards/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

// A signal handler takes no user data: process-wide state is the only way to reach it.
std::atomic<int> received_signal{0};          // lint: allow(global-state): see above
std::atomic<bool> installed{false};           // lint: allow(global-state): see above
std::atomic<bool> announces{false};           // lint: allow(global-state): see above
std::atomic<const char*> announced{nullptr};  // lint: allow(global-state): see above
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free,
              "the handler may only touch lock-free atomics");

// On a terminal, in place of the progress bar and the ^C behind it.
void announce(std::string_view text) {
  pollfd terminal{STDERR_FILENO, POLLOUT, 0};
  // A terminal that was stopped with Ctrl-S would hold up the interrupted thread.
  if (!announces || poll(&terminal, 1, 0) != 1) return;
  for (const std::string_view part : {std::string_view("\r\x1b[K"), text}) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, part.data(), part.size());
  }
}

extern "C" void on_stop_signal(int signal) {
  int none = 0;
  if (!received_signal.compare_exchange_strong(none, signal)) {
    if (signal == SIGHUP) return;  // a closing terminal may send it several times
    announce("");
    _exit(128 + signal);
  }
  announce(announced.load());
}

}  // namespace

// A thread, since those of the ranks may be blocked. It polls: a handler can wake nobody safely.
class StopSignals::Deadline {
  using Clock = std::chrono::steady_clock;

 public:
  Deadline(std::function<void(int)> end, std::chrono::milliseconds patience)
      : end_(std::move(end)), patience_(patience), thread_([this](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          const auto pause = std::min(patience_ / 4, std::chrono::milliseconds(250));
          while (!changed_.wait_for(lock, stop, pause, [&] { return stop.stop_requested(); })) check();
        }) {}

  void step_took(double seconds) {
    const std::lock_guard lock(mutex_);
    step_seconds_ = seconds;
  }
  void answered() {
    const std::lock_guard lock(mutex_);
    answered_ = true;
  }
  void begin(Work work) {
    const std::lock_guard lock(mutex_);
    if (busy_[index(work)]++ == 0) begun_[index(work)] = Clock::now();
  }
  void end(Work work) {
    const std::lock_guard lock(mutex_);
    if (--busy_[index(work)] == 0 && work == Work::save)
      longest_save_ = std::max(longest_save_, Clock::now() - begun_[index(work)]);
  }

 private:
  void check() {
    const int signal = received_signal.load();
    if (signal == 0) return;
    const Clock::time_point now = Clock::now();
    if (!seen_) seen_ = now;
    if (!since_ || is_busy()) since_ = now;
    if (is_late(Work::save, now) || is_late(Work::async_save, now)) return end_(signal);
    const std::chrono::duration<double> step(3.0 * step_seconds_);
    if (!answered_ && now - *since_ >= std::max<std::chrono::duration<double>>(patience_, step)) end_(signal);
  }

  static size_t index(Work work) { return static_cast<size_t>(work); }
  bool is_busy() const {
    return std::ranges::any_of(busy_, [](int count) { return count > 0; });
  }
  bool is_late(Work work, Clock::time_point now) const {
    if (busy_[index(work)] == 0 || busy_[index(Work::open_ended)] > 0) return false;
    const bool has_measure = work == Work::save && longest_save_ > Clock::duration::zero();
    const Clock::duration limit =
        has_measure ? std::max<Clock::duration>(2 * patience_, 3 * longest_save_) : 30 * patience_;
    return now - std::max(*seen_, begun_[index(work)]) >= limit;
  }

  const std::function<void(int)> end_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  double step_seconds_ = 0.0;
  bool answered_ = false;
  std::array<int, 3> busy_ = {};  // by Work; rank threads share this
  std::array<Clock::time_point, 3> begun_ = {};
  Clock::duration longest_save_{0};
  std::optional<Clock::time_point> seen_;   // the signal
  std::optional<Clock::time_point> since_;  // the signal, or the end of what was unhurried
  std::jthread thread_;                     // last: it uses the members above
};

StopSignals::StopSignals(const char* announcement) : handles_(true) {
  const bool already = installed.exchange(true);
  TERATRON_ASSERT(!already, "only one StopSignals may exist at a time");
  received_signal = 0;
  announced = announcement;
  announces = ::isatty(STDERR_FILENO) != 0;
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // restart interrupted reads and writes
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGHUP, nullptr, &old_hangup_);
  if (old_hangup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // ignored under nohup
}

StopSignals::StopSignals(Unhandled) {}

StopSignals::~StopSignals() {
  if (!handles_) return;
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
  if (received() == SIGHUP) old_hangup_.sa_handler = SIG_IGN;  // more may come until the process has ended
  sigaction(SIGHUP, &old_hangup_, nullptr);
  deadline_.reset();
  installed = false;
}

void StopSignals::end_unanswered(std::function<void(int)> end, std::chrono::milliseconds patience) {
  deadline_ = std::make_unique<Deadline>(std::move(end), patience);
}

void StopSignals::step_took(double seconds) const {
  if (deadline_) deadline_->step_took(seconds);
}

void StopSignals::answered() const {
  if (deadline_) deadline_->answered();
}

StopSignals::Unhurried::Unhurried(const StopSignals& signals, Work work) : signals_(signals), work_(work) {
  if (signals_.deadline_) signals_.deadline_->begin(work_);
}

StopSignals::Unhurried::~Unhurried() {
  if (signals_.deadline_) signals_.deadline_->end(work_);
}

int StopSignals::received() const {
  return handles_ ? received_signal.load() : 0;
}

}  // namespace teratron
