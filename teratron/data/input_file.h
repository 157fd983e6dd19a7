// Checked reads at an offset. Data sets are never mapped into memory: a file that is truncated while training
// must become an error with a name and an offset, not a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace teratron {

/// A file open for reading. Reads are thread-safe. A missing file or one that ends too early is
/// UserError(data); I/O errors of the system are retried briefly (network file systems), then Fault.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  /// Size in bytes and modification time when it was opened.
  int64_t size() const { return size_; }
  int64_t modified_ns() const { return modified_ns_; }

  /// Fills all of `to` with the bytes from `offset` on.
  void read_at(int64_t offset, std::span<std::byte> to) const;

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
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace teratron
