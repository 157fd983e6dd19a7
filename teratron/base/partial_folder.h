// Folders that take their name when they are complete, and what becomes of them when a process is ended.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "teratron/base/file_lock.h"

namespace teratron {

/// While it lives, remove_unfinished_folders() removes the folder.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(std::filesystem::path path);
  ~UnfinishedFolder();
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Calls `commit`, after which the folder is finished.
  void finish(const std::function<void()>& commit);

 private:
  std::filesystem::path path_;
};

/// For a process that a signal ends right after: no folder is finished any more.
void remove_unfinished_folders();

/// A new folder beside its destination, DESTINATION.partial-<random>, locked while it is written.
class PartialFolder {
 public:
  /// Removes what killed processes left of the same destination. UserError(config) if another process is
  /// writing one.
  explicit PartialFolder(std::filesystem::path destination);
  /// Removes the folder unless it was committed.
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::filesystem::path& path() const { return folder_->path(); }
  /// Renames the folder to its destination, which may be an empty folder; returns that.
  const std::filesystem::path& commit();

 private:
  void create();
  void remove();
  void remove_leftovers();

  std::filesystem::path destination_;
  std::unique_ptr<UnfinishedFolder> folder_;
  std::optional<FileLock> lock_;  // tells a folder that is being written from a leftover
};

}  // namespace teratron
