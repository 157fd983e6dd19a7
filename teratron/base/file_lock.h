// A lock between processes: an advisory lock (flock) on a file that is there while somebody holds it. The kernel, or
// the NFS server, frees it when its holder dies.
#pragma once

#include <filesystem>
#include <optional>

namespace teratron {

class FileLock {
 public:
  /// Waits until no other process holds the lock.
  static FileLock wait(const std::filesystem::path& path);
  /// Nothing if another process holds it.
  static std::optional<FileLock> try_take(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  /// Removes the file.
  ~FileLock();

 private:
  FileLock(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  static std::optional<FileLock> take(const std::filesystem::path& path, int operation);

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace teratron
