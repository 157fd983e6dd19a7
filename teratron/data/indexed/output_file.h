// A buffered file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "teratron/base/file.h"

namespace teratron {

/// AtomicFile for many small writes. Without commit() nothing is left.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Bytes given so far.
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
  void commit();

 private:
  void flush();

  std::string path_;
  AtomicFile file_;
  std::string buffer_;
  int64_t size_ = 0;
};

}  // namespace teratron
