// Checked file I/O: completes short reads and writes, converts errno to typed errors, and retries transient
// failures of network file systems (EIO, ESTALE) with exponential back-off.
//
// Errors that another path or permission fixes (missing, not permitted, read-only, not a directory, truncated
// file) are UserError of the caller's `kind`; all others are IoFault. Fault points: file.open, file.read,
// file.write, file.sync, file.rename (with errno=...).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// File system failure. exit_code() is checkpoint if the disk is full, else retryable.
class IoFault : public Fault {
 public:
  IoFault(const std::string& message, int error_number);
  int error_number() const { return error_number_; }
  /// ENOSPC, EDQUOT or EFBIG: retrying does not help until space is freed.
  bool is_full() const;

 private:
  int error_number_;
};

/// Number of retried calls in this process (a metric).
int64_t io_retries();

/// An open file; movable, closed by the destructor. Reads use pread and are thread-safe.
class File {
 public:
  /// Opens a regular file for reading, never waiting for the writer of a pipe. `kind` is that of UserErrors
  /// for an invalid path, a pipe, a device or a truncated file.
  static File open(const std::filesystem::path& path, ExitCode kind);
  /// Creates a file for writing, as the umask lets; it must not exist.
  static File create(const std::filesystem::path& path, ExitCode kind);
  /// Opens a regular file for appending; creates it if needed.
  static File append(const std::filesystem::path& path, ExitCode kind);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const;
  /// Reads up to `bytes` at `offset`; fewer only at the end of the file.
  int64_t read_some(void* buffer, int64_t bytes, int64_t offset) const;
  /// Reads exactly `bytes`; throws UserError if the file ends earlier.
  void read(void* buffer, int64_t bytes, int64_t offset) const;
  /// Appends to what was written.
  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  /// Lets the kernel start to write what was written so far to the disk.
  void start_writeback();
  /// fsync; never retried, since the kernel may already have dropped the dirty pages.
  void sync();
  /// Closes and reports errors, which the destructor cannot.
  void close();

 private:
  File(std::filesystem::path path, ExitCode kind, int flags);
  void require_regular() const;
  std::filesystem::path path_;
  ExitCode kind_;
  int descriptor_ = -1;
  int64_t written_ = 0;
  int64_t started_ = 0;  // of it
};

/// A random file name in the directory of `target`, to write a file that replaces `target` atomically. Throws
/// UserError(kind) if `target` exists and is not a regular file. Unless committed, the destructor removes the
/// file.
class TemporaryPath {
 public:
  TemporaryPath(std::filesystem::path target, ExitCode kind);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Renames the written and synced file to `target` and syncs the directory.
  void commit();

 private:
  std::filesystem::path target_;
  ExitCode kind_;
  std::filesystem::path path_;
  bool committed_ = false;
};

/// An open file at a TemporaryPath; commit() syncs and renames it.
class AtomicFile {
 public:
  AtomicFile(std::filesystem::path path, ExitCode kind)
      : path_(std::move(path), kind), file_(File::create(path_.path(), kind)) {}

  void write(const void* data, int64_t bytes) { file_.write(data, bytes); }
  void write(std::string_view text) { file_.write(text); }
  void commit();

 private:
  TemporaryPath path_;
  File file_;
};

struct ReadOptions {
  ExitCode kind = ExitCode::data;
  size_t max_bytes = size_t{1} << 30;  // larger files are rejected before allocation
};

/// Reads a whole file.
std::string read_text(const std::filesystem::path& path, const ReadOptions& options);
/// Writes a whole file atomically.
void write_text(const std::filesystem::path& path, std::string_view text, ExitCode kind);

/// rename(2): replaces a file or an empty directory.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode kind);
/// fsync of a directory: makes renames in it durable.
void sync_directory(const std::filesystem::path& path, ExitCode kind);
/// mkdir -p, as the umask lets.
void make_directories(const std::filesystem::path& path, ExitCode kind);
/// Sorted names in a directory; empty if it does not exist.
std::vector<std::string> list_directory(const std::filesystem::path& path, ExitCode kind);

/// Random lower-case hexadecimal digits from getrandom(2).
std::string random_hex(size_t digits);

}  // namespace teratron
