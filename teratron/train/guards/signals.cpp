#include "teratron/train/guards/signals.h"

#include <atomic>
#include <string_view>

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

StopSignals::StopSignals(const char* announcement) {
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

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGHUP, &old_hangup_, nullptr);
  installed = false;
}

int StopSignals::received() const {
  return received_signal.load();
}

}  // namespace teratron
