// Functions of a test that run in separate processes, to be killed or to compete.
#pragma once

#include <functional>

#include <sys/types.h>

namespace teratron::testing {

/// A forked process that ends with the result of `body`, or 99 if it throws. Its destructor kills it.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& body);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void kill() const;
  bool is_running() const;
  /// Waits until it has stopped by SIGSTOP; false if it has ended.
  bool wait_until_stopped() const;
  /// Waits for its end; 128 + the signal that killed it.
  int exit_code() const;

 private:
  pid_t process_;
};

/// The exit code of a ChildProcess.
int run_child(const std::function<int()>& body);

}  // namespace teratron::testing
