// One job per run directory: a lock file that names its holder.
//
// `run.lock` holds JSON {host, pid, started, run_id} and an advisory lock (fcntl, open file description) that
// the kernel, or the NFS server, releases when the holder dies: a file left behind by a killed job is
// recognised as stale and taken over. Where the file system has no locks, or keeps them to each machine, a
// holder on this machine is checked by its process id, and one on another by its heartbeat: the holder renews
// the file's time stamp.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

namespace teratron {

struct RunLockOptions {
  std::string run_id;
  std::chrono::milliseconds heartbeat{10'000};
  /// How long to watch a lock of another machine for a sign of life: more than two heartbeats.
  std::chrono::milliseconds watch{25'000};
};

class RunLock {
 public:
  /// UserError(config) naming host, process and start time if another job holds the directory. Prints a
  /// notice where a stale lock is taken over. The directory must exist.
  RunLock(const std::filesystem::path& directory, const RunLockOptions& options);
  /// Removes the file.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  const std::filesystem::path& path() const;

 private:
  class Holder;
  std::unique_ptr<Holder> holder_;
};

}  // namespace teratron
