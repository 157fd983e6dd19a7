// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace teratron {

/// Writes to an unpredictable name beside `path`; commit() flushes to the disk and renames. Without commit()
/// nothing is left. Failures of the system are Faults.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  void write(std::span<const std::byte> bytes);
  template <typename T>
  void write_values(std::span<const T> values) {
    write(std::as_bytes(values));
  }
  template <typename T>
  void write_value(const T& value) {
    write(std::as_bytes(std::span(&value, 1)));
  }
  /// Everything written so far reaches the disk; the name is not yet visible.
  void sync();
  void commit();

 private:
  void flush();

  std::string path_;
  std::string temporary_;
  std::string buffer_;
  int fd_ = -1;
  int64_t size_ = 0;
  bool synced_ = false;
};

}  // namespace teratron
