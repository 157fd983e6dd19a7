#include "teratron/cli/ckpt/removal_on_signal.h"

#include <pthread.h>

#include "teratron/base/partial_folder.h"

namespace teratron {

RemovalOnSignal::RemovalOnSignal() {
  sigemptyset(&signals_);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals_, number);  // nohup, or a job in the background
  }
  sigaddset(&signals_, SIGUSR2);  // of the destructor
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_);
  thread_ = std::thread([this] { wait(); });
}

RemovalOnSignal::~RemovalOnSignal() {
  stops_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void RemovalOnSignal::wait() const {
  int number = 0;
  while (sigwait(&signals_, &number) != 0 || (number == SIGUSR2 && !stops_)) {
  }
  if (number == SIGUSR2) return;
  remove_unfinished_folders();
  std::signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  std::raise(number);
}

}  // namespace teratron
