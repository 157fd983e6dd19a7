// A program started by this one, with its output in a pipe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "teratron/comm/host/socket_transport.h"

namespace teratron {

struct ChildOptions {
  std::vector<std::string> command;  // path (or name to look up) and arguments
  std::map<std::string, std::optional<std::string>> variables = {};  // set or, without a value, unset
  std::optional<int> inherit = {};                                   // a descriptor that the program gets
};

/// Started without a shell, in a process group of its own, so that a terminal's Ctrl-C does not reach it; the
/// kernel kills it when this process dies. Standard input is empty; standard output and error share the pipe.
class ChildProcess {
 public:
  /// Throws Fault when no process can be made; a program that cannot be run exits with 127 and says why.
  explicit ChildProcess(const ChildOptions& options);

  pid_t pid() const { return pid_; }
  const Descriptor& output() const { return output_; }
  bool running() const { return !status_; }
  /// Looks, without waiting, whether it has ended; true if it has just now.
  bool reap();
  /// The signal that stopped it, until it goes on.
  std::optional<int> stopped() const { return stopped_; }
  /// As waitpid() gives it. Only when it has ended.
  int status() const { return *status_; }
  /// To the process and what it started.
  void signal(int number) const;
  /// To the processes that it started itself (Linux tells them).
  void signal_children(int number) const;

 private:
  pid_t pid_ = -1;
  Descriptor output_;
  std::optional<int> status_, stopped_;
};

}  // namespace teratron
