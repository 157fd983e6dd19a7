#include "teratron/train/guards/job_lock.h"

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/environment.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/telemetry/log_lines.h"
#include "teratron/telemetry/metrics_logger.h"

namespace teratron {
namespace {

using nlohmann::json;

struct HolderInfo {
  std::string host;
  int64_t pid = 0;
  std::string started;
};

/// The file's content; nullopt if it is empty or malformed (a job may have died while writing it).
std::optional<HolderInfo> read_info(int descriptor) {
  std::array<char, 4096> buffer{};
  const ssize_t bytes = pread(descriptor, buffer.data(), buffer.size(), 0);
  if (bytes <= 0) return std::nullopt;
  const json info = json::parse(buffer.data(), buffer.data() + bytes, nullptr, false);
  if (!info.is_object()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto found = info.find(key);
    return found != info.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto pid = info.find("pid");
  return HolderInfo{.host = text("host"),
                    .pid = pid != info.end() && pid->is_number_integer() ? pid->get<int64_t>() : 0,
                    .started = text("started")};
}

/// Takes the kernel's lock. False: another process has it; nullopt: the file system has no locks.
std::optional<bool> lock_file(int descriptor) {
  struct flock request{};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  if (fcntl(descriptor, F_OFD_SETLK, &request) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return std::nullopt;
}

struct timespec modified_time(int descriptor) {
  struct stat status{};
  fstat(descriptor, &status);
  return status.st_mtim;
}

/// Whether the path still names this open file, not a successor.
bool names_this_file(const std::filesystem::path& path, int descriptor) {
  struct stat by_path{};
  struct stat by_descriptor{};
  return stat(path.c_str(), &by_path) == 0 && fstat(descriptor, &by_descriptor) == 0 &&
         by_path.st_ino == by_descriptor.st_ino && by_path.st_dev == by_descriptor.st_dev;
}

bool shows_life(int descriptor, std::chrono::milliseconds watch) {
  const auto before = modified_time(descriptor);
  const auto end = std::chrono::steady_clock::now() + watch;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::min(watch, std::chrono::milliseconds(200)));
    const auto now = modified_time(descriptor);
    if (now.tv_sec != before.tv_sec || now.tv_nsec != before.tv_nsec) return true;
  }
  return false;
}

UserError held_by(const std::filesystem::path& path, const std::optional<HolderInfo>& info) {
  const std::string who = info ? fmt::format("process {} on host {} since {}", info->pid,
                                             printable(info->host), printable(info->started))
                               : std::string("another process");
  return config_error({.what = "another job is writing to this directory: " + who,
                       .where = path.string(),
                       .fix = "wait for it, stop it, or give this job another --save directory"});
}

}  // namespace

JobLock::JobLock(const std::filesystem::path& directory, const JobLockOptions& options)
    : path_(directory / "run.lock") {
  while (!acquire(options.watch)) {
  }
  write_info(options.run_id);
  heartbeat_ = std::jthread([this, interval = options.heartbeat](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) {
      futimens(descriptor_, nullptr);
    }
  });
}

JobLock::~JobLock() {
  heartbeat_.request_stop();
  heartbeat_.join();
  // Removed while locked: a process that opened it meanwhile sees that the name is gone and retries.
  if (names_this_file(path_, descriptor_)) unlink(path_.c_str());
  ::close(descriptor_);
}

bool JobLock::acquire(std::chrono::milliseconds watch) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw config_error({.what = fmt::format("the lock file cannot be written: {}", std::strerror(errno)),
                        .where = path_.string(),
                        .fix = "choose a directory that this job may write to"});
  }
  const auto locked = lock_file(descriptor_);
  const auto info = read_info(descriptor_);
  const auto reject = [&] {
    ::close(descriptor_);
    throw held_by(path_, info);
  };
  if (locked && !*locked) reject();
  if (locked && !names_this_file(path_, descriptor_)) {
    ::close(descriptor_);
    return false;
  }
  if (!info) return true;
  const bool here = info->host == host_name();
  // If the kernel lock was free, a holder on this machine is dead.
  if (here && !locked && info->pid > 0 && kill(static_cast<pid_t>(info->pid), 0) == 0) reject();
  if (!here && shows_life(descriptor_, watch)) reject();
  notice("taking over the run from process {} on host {}, which ended without cleaning up", info->pid,
         printable(info->host));
  return true;
}

void JobLock::write_info(const std::string& run_id) const {
  const json info = {{"host", host_name()},
                     {"pid", getpid()},
                     {"started", timestamp(wall_clock(), false)},
                     {"run_id", run_id}};
  const std::string text = info.dump() + "\n";
  const bool written = ftruncate(descriptor_, 0) == 0 &&
                       pwrite(descriptor_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written) warn("{}: cannot write the holder of the lock: {}", path_.string(), std::strerror(errno));
}

}  // namespace teratron
