// Starts and supervises a job's ranks on this node.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/launch/child_process.h"
#include "teratron/launch/launch_options.h"
#include "teratron/launch/rank_output.h"

namespace teratron {

/// Blocks SIGCHLD, SIGHUP, SIGINT and SIGTERM and delivers them through a signalfd. After a SIGHUP, which a
/// closing terminal may send several times, the end of its life leaves SIGHUP ignored.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  int fd() const { return fd_.get(); }
  /// The next pending signal; 0 if none.
  int next();

 private:
  sigset_t previous_{};
  bool hung_up_ = false;
  FileDescriptor fd_;
};

class LaunchJob {
 public:
  struct Result {
    int code = 0;              // exit code for the launcher
    std::string failure;       // "" on success
    bool interrupted = false;  // a signal was forwarded
  };

  LaunchJob(const LaunchOptions& options, int64_t attempt);
  /// Runs all ranks to their end. Forwards signals to them: the first makes them save and stop, the second
  /// ends them.
  Result run(SignalQueue& signals);

 private:
  struct Child {
    std::unique_ptr<ChildProcess> process;
    int64_t rank = 0;          // unless single_process()
    std::string partial_line;  // of its output
    bool stop_reported = false;
    bool killed = false;   // by this launcher
    bool drained = false;  // end of its output reached
  };

  std::map<std::string, std::optional<std::string>> variables(int64_t local_rank) const;
  void start();
  void start_rank(int64_t local_rank, std::optional<int> listener);
  void start_single_process();
  std::vector<std::string> mpirun_command() const;
  void poll_events(SignalQueue& signals);
  void read_output(Child& child);
  void handle_line(const Child& child, std::string_view line);
  void handle_signal(int number);
  void reap_children();
  void check_stopped();
  void kill_stragglers();
  bool running() const;
  Result result() const;
  std::string describe_child(const Child& child) const;

  const LaunchOptions& options_;
  const int64_t attempt_;
  int port_ = 0;
  std::vector<Child> children_;
  std::vector<std::unique_ptr<RankOutput>> outputs_;  // by local rank
  std::vector<const Child*> failed_children_;         // in order of their exits
  std::optional<std::chrono::steady_clock::time_point>
      deadline_;  // for the other ranks after the first failure
  std::optional<std::chrono::steady_clock::time_point> all_stopped_since_;
  std::string failure_;  // detected by the launcher itself
  int signals_forwarded_ = 0;
};

}  // namespace teratron
