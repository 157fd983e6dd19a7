// A child process with its output in a pipe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "teratron/comm/transport/socket.h"

namespace teratron {

struct ChildOptions {
  std::vector<std::string> command;  // path, or name to look up in PATH, and arguments
  std::map<std::string, std::optional<std::string>> variables = {};  // nullopt: unset
  std::optional<int> inherit = {};                                   // a file descriptor
};

/// Runs without a shell, in its own process group, so that a terminal's Ctrl-C does not reach it; the kernel
/// kills it when this process dies. stdin is empty; stdout and stderr share the pipe.
class ChildProcess {
 public:
  /// Throws Fault if fork fails. A program that cannot be executed exits with 127 and prints why.
  explicit ChildProcess(const ChildOptions& options);

  pid_t pid() const { return pid_; }
  const FileDescriptor& output() const { return output_; }
  bool running() const { return !status_; }
  /// Non-blocking waitpid(); true if the process has just ended.
  bool reap();
  /// The signal that stopped it; nullopt while it runs.
  std::optional<int> stopped() const { return stopped_; }
  /// As from waitpid(). Only after it has ended.
  int status() const { return *status_; }
  /// Signals its process group.
  void signal(int number) const;
  /// Signals its direct children (from /proc).
  void signal_children(int number) const;

 private:
  pid_t pid_ = -1;
  FileDescriptor output_;
  std::optional<int> status_, stopped_;
};

}  // namespace teratron
