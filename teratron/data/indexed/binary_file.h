// Binary files of a dataset: random access for reading, buffered and atomic for writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "teratron/base/file.h"

namespace teratron {

/// A regular file open for reads at any offset; thread-safe. Not memory-mapped: a file truncated during
/// training must become an error with name and offset, not a SIGBUS. A missing file or a read past its end is
/// UserError(data); system failures are Faults (base/file.h).
class BinaryReader {
 public:
  explicit BinaryReader(const std::string& path);

  std::string path() const { return file_.path().string(); }
  /// Size in bytes and modification time when the file was opened.
  int64_t size() const { return size_; }
  int64_t modified_ns() const { return modified_ns_; }

  /// Reads the whole file, so that the system keeps it in memory as far as it has room.
  void warm_up() const;

  template <typename T>
  void read_values(int64_t offset, std::span<T> to) const {
    file_.read(to.data(), static_cast<int64_t>(to.size_bytes()), offset);
  }
  template <typename T>
  T read_value(int64_t offset) const {
    T value;
    read_values(offset, std::span(&value, 1));
    return value;
  }

 private:
  File file_;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
};

/// AtomicFile with a buffer for small writes. The file appears under its name at commit(); without it,
/// nothing is left behind.
class BinaryWriter {
 public:
  explicit BinaryWriter(const std::string& path);

  const std::string& path() const { return path_; }
  /// Bytes written so far, buffered ones included.
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
