#include "teratron/data/input_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

bool is_transient(int error) {
  return error == EIO || error == ESTALE || error == EAGAIN || error == ETIMEDOUT;
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) {
    const std::string reason = std::strerror(errno);
    if (is_transient(errno) || errno == EMFILE || errno == ENFILE) {
      throw Fault(fmt::format("cannot open {}: {}", printable(path_), reason));
    }
    throw data_error({.what = "cannot be opened: " + reason,
                      .where = printable(path_, 1000),
                      .fix = "Check the path and the permissions"});
  }
  struct stat status = {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw data_error({.what = "is not a regular file", .where = printable(path_, 1000)});
  }
  size_ = status.st_size;
  modified_ns_ = static_cast<int64_t>(status.st_mtim.tv_sec) * 1000000000 + status.st_mtim.tv_nsec;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      modified_ns_(other.modified_ns_) {}

void InputFile::read_at(int64_t offset, std::span<std::byte> to) const {
  TERATRON_ASSERT(offset >= 0, "offset {} in {}", offset, path_);
  int failures = 0;
  while (!to.empty()) {
    const ssize_t count = ::pread(fd_, to.data(), to.size(), offset);
    if (count > 0) {
      to = to.subspan(static_cast<size_t>(count));
      offset += count;
      continue;
    }
    if (count == 0) {
      throw data_error({.what = fmt::format("ends at byte {} although {} more bytes were expected there",
                                            offset, to.size()),
                        .where = printable(path_, 1000),
                        .fix = "The file was cut or replaced; restore it or write it again"});
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (!is_transient(error) || ++failures > 5) {
      throw Fault(
          fmt::format("reading {} at byte {} failed: {}", printable(path_), offset, std::strerror(error)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 << failures));
  }
}

}  // namespace teratron
