// Inter-process lock: an advisory flock on a directory, or on a file that exists while the lock is held. The
// kernel (or the NFS server) releases it when the holder dies.
#pragma once

#include <filesystem>
#include <optional>

namespace teratron {

class FileLock {
 public:
  /// Blocks until the lock is free.
  static FileLock acquire(const std::filesystem::path& path);
  /// Nullopt if the lock is held, by another process or this one.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path);
  /// Locks a directory itself; nullopt if the lock is held or the directory cannot be opened.
  static std::optional<FileLock> try_acquire_directory(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  /// Removes the file (not a directory) and releases the lock.
  ~FileLock();

 private:
  FileLock(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  static std::optional<FileLock> lock(const std::filesystem::path& path, int operation);

  std::filesystem::path path_;  // the file to remove
  int descriptor_;
};

}  // namespace teratron
