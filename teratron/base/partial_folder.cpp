#include "teratron/base/partial_folder.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <system_error>

#include "teratron/base/error.h"
#include "teratron/base/file.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

struct Unfinished {
  std::mutex mutex;
  std::set<fs::path> folders;
};

Unfinished& unfinished() {
  static Unfinished all;  // lint: allow(global-state): what handles a signal can reach nothing else
  return all;
}

constexpr std::string_view marker = ".partial-";
constexpr size_t digits = 8;

bool is_partial_of(const std::string& name, const std::string& destination) {
  const std::string beginning = destination + std::string(marker);
  return name.size() == beginning.size() + digits && name.starts_with(beginning) &&
         name.find_first_not_of("0123456789abcdef", beginning.size()) == name.npos;
}

}  // namespace

UnfinishedFolder::UnfinishedFolder(fs::path path) : path_(std::move(path)) {
  const std::lock_guard lock(unfinished().mutex);
  unfinished().folders.insert(path_);
}

UnfinishedFolder::~UnfinishedFolder() {
  const std::lock_guard lock(unfinished().mutex);
  unfinished().folders.erase(path_);
}

void UnfinishedFolder::finish(const std::function<void()>& commit) {
  const std::lock_guard lock(unfinished().mutex);
  commit();
  unfinished().folders.erase(path_);
}

void remove_unfinished_folders() {
  unfinished().mutex.lock();  // for good
  for (const fs::path& folder : unfinished().folders) {
    // Other threads still write into it.
    std::error_code error;
    for (int attempt = 0; attempt < 100 && (attempt == 0 || error); ++attempt) fs::remove_all(folder, error);
  }
}

PartialFolder::PartialFolder(fs::path destination) : destination_(std::move(destination)) {
  if (!destination_.has_filename()) destination_ = destination_.parent_path();  // "out/"
  while (!lock_) create();
  try {
    remove_leftovers();
  } catch (...) {
    remove();
    throw;
  }
}

PartialFolder::~PartialFolder() {
  if (folder_) remove();
}

const fs::path& PartialFolder::commit() {
  folder_->finish([this] { rename_path(folder_->path(), destination_, ExitCode::checkpoint); });
  folder_.reset();
  sync_directory(fs::absolute(destination_).parent_path(), ExitCode::checkpoint);
  return destination_;
}

// Another process may take the folder for a leftover until it is locked.
void PartialFolder::create() {
  fs::path path = destination_;
  path += std::string(marker) + random_hex(digits);
  folder_ = std::make_unique<UnfinishedFolder>(path);
  make_directories(path, ExitCode::config);
  lock_ = FileLock::try_acquire_directory(path);
  std::error_code ignored;
  if (lock_ && !fs::exists(path, ignored)) lock_.reset();
}

void PartialFolder::remove() {
  std::error_code ignored;
  fs::remove_all(folder_->path(), ignored);
  folder_.reset();
}

void PartialFolder::remove_leftovers() {
  const fs::path parent = fs::absolute(destination_).parent_path();
  for (const std::string& name : list_directory(parent, ExitCode::config)) {
    if (!is_partial_of(name, destination_.filename().string()) || name == path().filename()) continue;
    if (const auto leftover = FileLock::try_acquire_directory(parent / name)) {
      std::error_code ignored;
      fs::remove_all(parent / name, ignored);
    } else if (std::error_code ignored; fs::exists(parent / name, ignored)) {
      throw config_error({.what = "another process is writing to it",
                          .where = printable(destination_.string(), 4096),
                          .fix = "Wait for it, or name another folder"});
    }
  }
}

}  // namespace teratron
