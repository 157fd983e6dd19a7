// Files without surprises: every call is checked, short reads and writes are completed, errno becomes a typed
// error, and transient failures of network file systems (EIO, ESTALE) are tried again with growing pauses.
//
// Which error: what the user can put right by another path or permission (missing, not permitted, read-only,
// not a directory, a file that ends too early) is UserError of the `kind` that the caller gave; the rest is
// IoFault. Fault points: file.open, file.read, file.write, file.sync, file.rename (errno=... is honoured).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// The file system failed. exit_code(): checkpoint where a disk is full, otherwise retryable.
class IoFault : public Fault {
 public:
  IoFault(const std::string& message, int error_number);
  int error_number() const { return error_number_; }
  /// ENOSPC, EDQUOT or EFBIG: the same call fails again until somebody makes room.
  bool is_full() const;

 private:
  int error_number_;
};

/// How often a read, write or open was tried again, in this process: a metric.
int64_t io_retries();

/// An open file: movable, closed by the destructor. Reads are pread and may run in several threads at once.
class File {
 public:
  /// Opens for reading. `kind` is the UserError that a bad path or a short file becomes.
  static File open(const std::filesystem::path& path, ExitCode kind);
  /// Creates a file that must not exist, mode 0640, for write().
  static File create(const std::filesystem::path& path, ExitCode kind);
  /// Opens for write() at the end, creating it if needed.
  static File append(const std::filesystem::path& path, ExitCode kind);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const;
  /// Reads up to `bytes` at `offset`; less only at the end of the file.
  int64_t read_some(void* buffer, int64_t bytes, int64_t offset) const;
  /// Reads exactly `bytes`; UserError naming file, offset and what was there if the file ends before.
  void read(void* buffer, int64_t bytes, int64_t offset) const;
  /// Writes all of it after what was written before.
  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  /// fsync. A failure is never retried: the kernel may have dropped the pages already.
  void sync();
  /// Closes with the error check that the destructor cannot do.
  void close();

 private:
  File(std::filesystem::path path, ExitCode kind, int flags);
  std::filesystem::path path_;
  ExitCode kind_;
  int descriptor_ = -1;
  int64_t written_ = 0;
};

/// An unpredictable name beside `target`, under which a file is written that appears there whole or not at all. A
/// target that exists and is no file is UserError(kind). Without commit() the destructor removes what was written.
class TemporaryPath {
 public:
  TemporaryPath(std::filesystem::path target, ExitCode kind);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Of the file that is there, written and synced: rename, fsync of the directory.
  void commit();

 private:
  std::filesystem::path target_;
  ExitCode kind_;
  std::filesystem::path path_;
  bool committed_ = false;
};

/// A file of that kind, and fsync before it is committed.
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
  size_t max_bytes = size_t{1} << 30;  // larger files are refused before anything is allocated
};

/// A whole file.
std::string read_text(const std::filesystem::path& path, const ReadOptions& options);
/// AtomicFile with this content.
void write_text(const std::filesystem::path& path, std::string_view text, ExitCode kind);

/// rename(2), checked; replaces a file, and an empty directory.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode kind);
/// fsync of a directory, so that the names in it survive a power cut.
void sync_directory(const std::filesystem::path& path, ExitCode kind);
/// mkdir -p with mode 0750; a path that is a file or not permitted is UserError(kind).
void make_directories(const std::filesystem::path& path, ExitCode kind);
/// Names in a directory, sorted; nothing if there is no such directory.
std::vector<std::string> list_directory(const std::filesystem::path& path, ExitCode kind);

/// Unpredictable lower-case hexadecimal digits from the kernel.
std::string random_hex(size_t digits);

}  // namespace teratron
