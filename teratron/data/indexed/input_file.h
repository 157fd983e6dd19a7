// Checked reads at an offset. Data sets are never mapped into memory: a file that is truncated while training
// must become an error with a name and an offset, not a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "teratron/base/file.h"

namespace teratron {

/// A regular file open for reading. Reads are thread-safe. A missing file or one that ends too early is
/// UserError(data); failures of the system are Faults (base/file.h).
class InputFile {
 public:
  explicit InputFile(const std::string& path);

  std::string path() const { return file_.path().string(); }
  /// Size in bytes and modification time when it was opened.
  int64_t size() const { return size_; }
  int64_t modified_ns() const { return modified_ns_; }

  /// Fills all of `to` with the bytes from `offset` on.
  void read_at(int64_t offset, std::span<std::byte> to) const {
    file_.read(to.data(), static_cast<int64_t>(to.size()), offset);
  }
  template <typename T>
  void read_values(int64_t offset, std::span<T> to) const {
    read_at(offset, std::as_writable_bytes(to));
  }
  template <typename T>
  T read_value(int64_t offset) const {
    T value;
    read_at(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 private:
  File file_;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace teratron
