// The ranks of a job on this machine, from their start to the end of the last.
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

/// SIGCHLD, SIGHUP, SIGINT and SIGTERM as something to poll, while it lives.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  int descriptor() const { return descriptor_.get(); }
  /// The next signal; 0 if there is none.
  int next() const;

 private:
  sigset_t former_{};
  Descriptor descriptor_;
};

class LaunchJob {
 public:
  /// How it ended: the exit code for the caller and, where it is no success, what happened in words.
  struct Result {
    int code = 0;
    std::string failure;
    bool interrupted = false;  // a signal was passed on
  };

  LaunchJob(const LaunchOptions& options, int64_t attempt);
  /// Signals are passed on to all ranks: the first makes them save and stop, the second ends them.
  Result run(const SignalQueue& signals);

 private:
  struct Child {
    std::unique_ptr<ChildProcess> process;
    int64_t rank = 0;     // of one that is a rank
    std::string partial;  // of its last line
    bool stop_told = false;
    bool ended_by_us = false;
    bool drained = false;
  };

  std::map<std::string, std::optional<std::string>> variables(int64_t local_rank) const;
  void start();
  void start_rank(int64_t local_rank, std::optional<int> listener);
  void start_all_in_one();
  std::vector<std::string> mpirun_command() const;
  void wait_for_news(const SignalQueue& signals);
  void read_output(Child& child);
  void take_line(const Child& child, std::string_view line);
  void take_signal(int number);
  void note_ends();
  void note_stops();
  void end_stragglers();
  bool running() const;
  Result result() const;
  std::string name_of_child(const Child& child) const;

  const LaunchOptions& options_;
  const int64_t attempt_;
  int port_ = 0;
  std::vector<Child> children_;
  std::vector<std::unique_ptr<RankOutput>> outputs_;               // by local rank
  std::vector<const Child*> failed_;                               // in the order of their ends
  std::optional<std::chrono::steady_clock::time_point> deadline_;  // of the others after the first failure
  std::optional<std::chrono::steady_clock::time_point> stopped_since_;  // all of them
  std::string failure_;                                                 // that this launcher saw itself
  int signals_passed_ = 0;
};

}  // namespace teratron
