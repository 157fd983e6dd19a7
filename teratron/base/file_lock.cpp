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

// False if the previous holder has removed the file, so that the path names another file or none.
bool is_current(int descriptor, const std::filesystem::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

std::optional<FileLock> FileLock::lock(const std::filesystem::path& path, int operation) {
  const auto fail = [&](const char* what) {
    throw Fault(fmt::format("cannot {} {}: {}", what, printable(path.string(), 1000), std::strerror(errno)));
  };
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0 && (errno == EACCES || errno == EPERM || errno == EROFS || errno == ENOENT)) {
      throw config_error({.what = fmt::format("the directory is not writable ({})", std::strerror(errno)),
                          .where = printable(path.parent_path().string(), 1000),
                          .fix = "Choose a writable directory"});
    }
    if (descriptor < 0) fail("create");
    FileLock held(path, descriptor);
    while (::flock(descriptor, operation) != 0) {
      if (errno == EINTR) continue;
      held.path_.clear();  // another process holds it: keep the file
      if (errno == EWOULDBLOCK) return std::nullopt;
      fail("lock");
    }
    if (is_current(descriptor, path)) return held;
    held.path_.clear();
  }
}

FileLock FileLock::acquire(const std::filesystem::path& path) {
  return *lock(path, LOCK_EX);
}

std::optional<FileLock> FileLock::try_acquire(const std::filesystem::path& path) {
  return lock(path, LOCK_EX | LOCK_NB);
}

std::optional<FileLock> FileLock::try_acquire_directory(const std::filesystem::path& path) {
  FileLock held("", ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (held.descriptor_ < 0 || ::flock(held.descriptor_, LOCK_EX | LOCK_NB) != 0) return std::nullopt;
  return held;
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  if (!path_.empty()) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace teratron
