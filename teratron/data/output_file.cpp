#include "teratron/data/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr size_t kBufferBytes = 1 << 20;

[[noreturn]] void fail(const char* action, const std::string& path, int error) {
  throw Fault(fmt::format("{} {} failed: {}", action, printable(path, 1000), std::strerror(error)));
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      fail("writing", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".partial-XXXXXX") {
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) fail("creating", path_, errno);
  ::fchmod(fd_, 0640);
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  size_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    write_all(fd_, bytes, temporary_);
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void OutputFile::flush() {
  write_all(fd_, std::as_bytes(std::span(buffer_)), temporary_);
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  if (::fsync(fd_) != 0) fail("flushing", temporary_, errno);
  synced_ = true;
}

void OutputFile::commit() {
  if (!synced_ || !buffer_.empty()) sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming to", path_, errno);
  ::close(std::exchange(fd_, -1));
  const auto folder = std::filesystem::path(path_).parent_path();
  const int directory = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace teratron
