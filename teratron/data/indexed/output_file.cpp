#include "teratron/data/indexed/output_file.h"

namespace teratron {

namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), file_(path, ExitCode::data) {
  buffer_.reserve(kBufferBytes);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  size_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    file_.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void OutputFile::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void OutputFile::commit() {
  flush();
  file_.commit();
}

}  // namespace teratron
