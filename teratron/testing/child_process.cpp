#include "teratron/testing/child_process.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <sys/wait.h>
#include <unistd.h>

namespace teratron::testing {

ChildProcess::ChildProcess(const std::function<int()>& body) : process_(::fork()) {
  if (process_ != 0) return;
  try {
    std::_Exit(body());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());  // lint: allow(output): of a test's child
    std::_Exit(99);
  }
}

ChildProcess::~ChildProcess() {
  if (::waitpid(process_, nullptr, WNOHANG) != 0) return;  // has ended, perhaps waited for earlier
  kill();
  ::waitpid(process_, nullptr, 0);
}

void ChildProcess::kill() const {
  ::kill(process_, SIGKILL);
}

bool ChildProcess::is_running() const {
  siginfo_t state = {};
  return ::waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         state.si_pid == 0;
}

bool ChildProcess::wait_until_stopped() const {
  siginfo_t state = {};
  return ::waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WSTOPPED | WNOWAIT) == 0 &&
         state.si_code == CLD_STOPPED;
}

int ChildProcess::exit_code() const {
  int status = 0;
  ::waitpid(process_, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_child(const std::function<int()>& body) {
  return ChildProcess(body).exit_code();
}

}  // namespace teratron::testing
