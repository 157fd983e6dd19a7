#include "teratron/data/indexed/binary_file.h"

#include <algorithm>
#include <vector>

#include <sys/stat.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

BinaryReader::BinaryReader(const std::string& path) : file_(File::open(path, ExitCode::data)) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw data_error({.what = "is not a regular file", .where = printable(path, 1000)});
  }
  size_ = file_.size();
  modified_ns_ = static_cast<int64_t>(status.st_mtim.tv_sec) * 1000000000 + status.st_mtim.tv_nsec;
}

void BinaryReader::warm_up() const {
  std::vector<std::byte> part(kBufferBytes);
  for (int64_t done = 0; done < size_; done += static_cast<int64_t>(part.size())) {
    part.resize(static_cast<size_t>(std::min<int64_t>(kBufferBytes, size_ - done)));
    read_values(done, std::span(part));
  }
}

BinaryWriter::BinaryWriter(const std::string& path) : path_(path), file_(path, ExitCode::data) {
  buffer_.reserve(kBufferBytes);
}

void BinaryWriter::write(std::span<const std::byte> bytes) {
  size_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    file_.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void BinaryWriter::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void BinaryWriter::commit() {
  flush();
  file_.commit();
}

}  // namespace teratron
