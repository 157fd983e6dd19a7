// The program's definitions of libc's functions come before libc's own.
#include "tests/scale/file_calls.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace teratron {
namespace {

struct Counts {
  std::atomic<int64_t> opened = 0, looked_at = 0, removed = 0;
};
Counts counts;  // lint: allow(global-state): libc has one of each function

int open_at(int folder, const char* path, int flags, va_list rest) {
  ++counts.opened;
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

int look_at(int folder, const char* path, void* status, int flags) {
  ++counts.looked_at;
  return static_cast<int>(::syscall(SYS_newfstatat, folder, path, status, flags));
}

int remove_at(int folder, const char* path, int flags) {
  ++counts.removed;
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}

}  // namespace

FileCalls file_calls() {
  return {counts.opened, counts.looked_at, counts.removed};
}

}  // namespace teratron

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int descriptor = teratron::open_at(AT_FDCWD, path, flags, rest);
  va_end(rest);
  return descriptor;
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int descriptor = teratron::open_at(folder, path, flags, rest);
  va_end(rest);
  return descriptor;
}

int stat(const char* path, struct stat* status) noexcept {
  return teratron::look_at(AT_FDCWD, path, status, 0);
}

int lstat(const char* path, struct stat* status) noexcept {
  return teratron::look_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return teratron::look_at(folder, path, status, flags);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return teratron::remove_at(folder, path, flags);
}

int unlink(const char* path) noexcept {
  return teratron::remove_at(AT_FDCWD, path, 0);
}

int remove(const char* path) noexcept {
  const int result = teratron::remove_at(AT_FDCWD, path, 0);
  return result == 0 || errno != EISDIR ? result : teratron::remove_at(AT_FDCWD, path, AT_REMOVEDIR);
}
}
