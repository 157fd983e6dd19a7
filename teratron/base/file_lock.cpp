#include "teratron/base/file_lock.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

/// False when the name meanwhile means another file or none: the holder before us has removed it.
bool is_current(int descriptor, const std::filesystem::path& path) {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

std::optional<FileLock> FileLock::take(const std::filesystem::path& path, int operation) {
  const auto fail = [&](const char* what) {
    throw Fault(fmt::format("cannot {} {}: {}", what, printable(path.string(), 1000), std::strerror(errno)));
  };
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (descriptor < 0 && (errno == EACCES || errno == EPERM || errno == EROFS || errno == ENOENT)) {
      throw config_error({.what = fmt::format("the folder cannot be written to ({})", std::strerror(errno)),
                          .where = printable(path.parent_path().string(), 1000),
                          .fix = "Name one that you may write to"});
    }
    if (descriptor < 0) fail("create");
    FileLock lock(path, descriptor);
    while (::flock(descriptor, operation) != 0) {
      if (errno == EINTR) continue;
      lock.path_.clear();  // not ours: it stays
      if (errno == EWOULDBLOCK) return std::nullopt;
      fail("lock");
    }
    if (is_current(descriptor, path)) return lock;
    lock.path_.clear();
  }
}

FileLock FileLock::wait(const std::filesystem::path& path) {
  return *take(path, LOCK_EX);
}

std::optional<FileLock> FileLock::try_take(const std::filesystem::path& path) {
  return take(path, LOCK_EX | LOCK_NB);
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  if (!path_.empty()) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace teratron
