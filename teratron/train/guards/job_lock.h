// One job per save directory: a lock file that names its holder.
//
// `run.lock` holds JSON {host, pid, started, run_id} and an advisory lock (fcntl, open file description).
// The kernel, or the NFS server, releases the lock when the holder dies: a file left by a killed job is
// recognised as stale and taken over. Some file systems have no locks, or only locks per machine. There a
// holder on this machine is checked by its process id, and one on another machine by its heartbeat: it
// renews the file's time stamp.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace teratron {

struct JobLockOptions {
  std::string run_id;
  std::chrono::milliseconds heartbeat{10'000};
  /// How long to wait for a heartbeat of another machine: more than two intervals.
  std::chrono::milliseconds watch{25'000};
};

class JobLock {
 public:
  /// UserError(config) naming host, process and start time if another job holds the directory. Prints a
  /// notice when it takes over a stale lock. The directory must exist.
  JobLock(const std::filesystem::path& directory, const JobLockOptions& options);
  /// Removes the file.
  ~JobLock();
  JobLock(const JobLock&) = delete;
  JobLock& operator=(const JobLock&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  /// False: the file was removed in between, try again.
  bool acquire(std::chrono::milliseconds watch);
  void write_info(const std::string& run_id) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::jthread heartbeat_;
};

}  // namespace teratron
