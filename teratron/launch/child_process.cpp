#include "teratron/launch/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/error.h"

extern char** environ;  // lint: allow(global-state): the process's environment

namespace teratron {
namespace {

std::vector<std::string> child_environment(const ChildOptions& options) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!options.variables.contains(name)) result.emplace_back(*entry);
  }
  for (const auto& [name, value] : options.variables) {
    if (value) result.push_back(name + "=" + *value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct ExecArguments {
  char* const* command;
  char* const* environment;
  int output;
  int inherit;
  pid_t parent;
};

/// Only async-signal-safe calls are allowed between fork and exec.
[[noreturn]] void execute(const ExecArguments& program) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != program.parent) _exit(127);
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // ignored by the launcher
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(input, STDIN_FILENO);
  dup2(program.output, STDOUT_FILENO);
  dup2(program.output, STDERR_FILENO);
  if (program.inherit >= 0) fcntl(program.inherit, F_SETFD, 0);
  execvpe(program.command[0], program.command, program.environment);
  const char* reason = strerrordesc_np(errno);
  for (const char* part : {"error: cannot run ", static_cast<const char*>(program.command[0]), ": ",
                           reason ? reason : "?", "\n"}) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, part, std::strlen(part));
  }
  _exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const ChildOptions& options) {
  std::vector<std::string> command = options.command, environment = child_environment(options);
  const std::vector<char*> arguments = pointers(command), variables = pointers(environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Fault(fmt::format("cannot create a pipe: {}", std::strerror(errno)));
  output_ = FileDescriptor(ends[0]);
  const FileDescriptor writing(ends[1]);
  const ExecArguments program{.command = arguments.data(),
                              .environment = variables.data(),
                              .output = writing.get(),
                              .inherit = options.inherit.value_or(-1),
                              .parent = getpid()};
  pid_ = fork();
  if (pid_ == 0) execute(program);
  if (pid_ < 0) throw Fault(fmt::format("cannot create a process: {}", std::strerror(errno)));
  fcntl(output_.get(), F_SETFL, O_NONBLOCK);
}

bool ChildProcess::reap() {
  int status = 0;
  while (running() && waitpid(pid_, &status, WNOHANG | WUNTRACED | WCONTINUED) == pid_) {
    stopped_.reset();
    if (WIFSTOPPED(status)) stopped_ = WSTOPSIG(status);
    if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) status_ = status;
    if (status_) return true;
  }
  return false;
}

void ChildProcess::signal(int number) const {
  if (kill(-pid_, number) != 0) kill(pid_, number);
}

void ChildProcess::signal_children(int number) const {
  std::ifstream list(fmt::format("/proc/{0}/task/{0}/children", pid_));
  for (pid_t child = 0; list >> child;) kill(child, number);
}

}  // namespace teratron
