#include "teratron/data/indexed/index_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/hash.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/comm/stopped.h"
#include "teratron/data/indexed/indexed_dataset.h"

namespace teratron {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json shapes_of(const CachedIndex& index) {
  json shapes = json::array();
  for (const IndexArray& array : index.arrays) shapes.push_back({array.rows(), array.columns()});
  return shapes;
}

constexpr std::chrono::seconds kReportInterval(10);

/// One index in one folder.
class CacheEntry {
 public:
  CacheEntry(const fs::path& folder, const IndexCacheKey& key, const json& description)
      : folder_(folder),
        key_(key),
        description_(description),
        stem_(folder / fmt::format("{}-{}", key.kind, hash_to_hex(hash_text(description.dump())))) {}

  const fs::path& folder() const { return folder_; }
  fs::path lock() const { return stem_.string() + ".lock"; }

  /// The cached index, or nothing. The description is written last and marks a complete index.
  std::optional<CachedIndex> load() const {
    std::error_code ignored;
    if (!fs::exists(described(), ignored)) return {};
    try {
      const json stored = read_json(described(), {.kind = ExitCode::data});
      if (stored.at("description") != description_) return {};
      CachedIndex index{.numbers = stored.at("numbers"), .arrays = {}};
      for (const std::string& name : key_.arrays) index.arrays.push_back(IndexArray::open(array(name)));
      if (stored.at("shapes") == shapes_of(index)) return index;
      warn("{}: the cached index is damaged; rebuilding it", printable(stem_.string(), 1000));
    } catch (const UserError& error) {
      warn("{} Rebuilding the index.", error.what());
    } catch (const json::exception&) {
      warn("{}: the cached description is damaged; rebuilding the index",
           printable(described().string(), 1000));
    }
    return {};
  }

  void save(const CachedIndex& index, const std::string& prefix) const {
    remove_leftovers();
    for (size_t i = 0; i < index.arrays.size(); ++i) index.arrays[i].save(array(key_.arrays[i]));
    const json stored = {{"description", description_},
                         {"dataset", prefix},
                         {"numbers", index.numbers},
                         {"shapes", shapes_of(index)}};
    write_text(described(), stored.dump(2), ExitCode::data);
  }

 private:
  fs::path described() const { return stem_.string() + ".json"; }
  std::string array(const std::string& name) const { return fmt::format("{}-{}.npy", stem_.string(), name); }

  /// Temporary files of a builder that died. The lock is held, so no builder of this index lives.
  void remove_leftovers() const {
    const std::string begin = fmt::format(".{}", stem_.filename().string());
    for (const std::string& name : list_directory(folder_, ExitCode::data)) {
      std::error_code ignored;
      if (name.starts_with(begin) && name.ends_with(".tmp")) fs::remove(folder_ / name, ignored);
    }
  }

  fs::path folder_;
  const IndexCacheKey& key_;
  const json& description_;
  fs::path stem_;
};

/// A folder of this user alone in the host's temporary files; "" if somebody else owns its name.
fs::path temporary_folder() {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) return {};
  const fs::path folder = temporary / fmt::format("teratron-index-cache-{}", ::geteuid());
  ::mkdir(folder.c_str(), 0700);
  struct stat status = {};
  const bool is_mine = ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                       status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return is_mine ? folder : fs::path();
}

std::vector<fs::path> folders_of(const IndexSource& source, const IndexCache& cache) {
  if (cache.place == IndexCache::Place::memory) return {};
  if (cache.place == IndexCache::Place::folder) return {cache.folder};
  std::vector<fs::path> folders = {source.folder, cache.folder, temporary_folder()};
  std::erase(folders, fs::path());
  return folders;
}

/// Waits for a lock in another thread, since nothing else ends such a wait; if the caller is asked to stop,
/// that thread is left to itself and releases the lock when it gets it.
FileLock acquire(const fs::path& path, const std::stop_token& stop) {
  std::promise<FileLock> promise;
  std::future<FileLock> lock = promise.get_future();
  std::thread([path, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(FileLock::acquire(path));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  constexpr std::chrono::milliseconds interval(100);
  while (lock.wait_for(interval) != std::future_status::ready) throw_if_stopped(stop);
  return lock.get();
}

/// Whether the user chose the folder: then it is an error if it cannot be used.
bool is_chosen(const IndexCache& cache) {
  return cache.place == IndexCache::Place::folder;
}

/// An index in the folders where it may be.
class IndexFolders {
 public:
  IndexFolders(std::string name, std::vector<CacheEntry> entries, const IndexCache& cache)
      : name_(printable(name, 1000)), entries_(std::move(entries)), cache_(cache) {}

  std::optional<CachedIndex> load() const {
    for (const CacheEntry& entry : entries_) {
      if (auto index = entry.load()) return index;
    }
    return {};
  }

  /// Locks the index in the next folder that can be written, the first at first. Locks are held until this
  /// object ends: who waits for one must find the index that is kept in a later folder.
  bool lock_next() {
    while (next_ < entries_.size()) {
      const CacheEntry& entry = entries_[next_++];
      try {
        make_directories(entry.folder(), ExitCode::data);
        locks_.push_back(wait_for_builder(entry));
        return true;
      } catch (const UserError&) {
        if (is_chosen(cache_)) throw;
      } catch (const Fault&) {  // no locks on this file system, or an I/O error
        if (is_chosen(cache_)) throw;
      }
    }
    return false;
  }

  /// Keeps a new index in the locked folder or, if that fails (a full disk), in a later one, and returns it
  /// without its memory; with it if no folder has room.
  CachedIndex keep(CachedIndex built) {
    std::string reason;
    for (bool is_first = true; is_first || lock_next(); is_first = false) {
      const CacheEntry& entry = entries_[next_ - 1];
      try {
        if (!is_first) {  // another process may have kept it there while this one waited
          if (auto stored = entry.load()) return *std::move(stored);
        }
        entry.save(built, name_);
        if (auto stored = entry.load()) return *std::move(stored);
      } catch (const std::exception& error) {
        if (is_chosen(cache_)) throw;
        reason = error.what();
      }
    }
    warn("the index of {} is kept in the memory of each process that reads it: {}", name_, reason);
    return built;
  }

 private:
  /// Waits for the lock of an index, saying so: the process that holds it builds.
  FileLock wait_for_builder(const CacheEntry& entry) const {
    if (auto lock = FileLock::try_acquire(entry.lock())) return *std::move(lock);
    std::optional<FileLock> reporter;  // of all that wait, one reports
    const PeriodicReport report(kReportInterval, [&](int64_t seconds) {
      if (!reporter) reporter = FileLock::try_acquire(entry.lock().string() + ".wait");
      if (reporter)
        notice("waiting for the index of {} that another process builds in {} ({} s)", name_,
               printable(entry.folder().string(), 1000), seconds);
    });
    return acquire(entry.lock(), cache_.stop);
  }

  std::string name_;
  std::vector<CacheEntry> entries_;
  const IndexCache& cache_;
  size_t next_ = 0;
  std::vector<FileLock> locks_;
};

CachedIndex build_reported(const std::string& name, const IndexCache& cache,
                           const std::function<CachedIndex(IndexProgress&)>& build) {
  IndexProgress progress(cache.stop);
  const PeriodicReport report(kReportInterval, [&](int64_t seconds) {
    const std::string text = progress.text();
    notice("building the index of {} ({} s){}{}", printable(name, 1000), seconds, text.empty() ? "" : ": ",
           text);
  });
  fault_point("data.build_index");
  return build(progress);
}

}  // namespace

std::string fingerprint(const BinaryReader& file) {
  constexpr int64_t kPart = 1 << 20;
  std::vector<std::byte> part(static_cast<size_t>(std::min(kPart, file.size())));
  Hasher hasher;
  for (const int64_t offset : {int64_t{0}, file.size() - static_cast<int64_t>(part.size())}) {
    file.read_values(offset, std::span(part));
    hasher.update(part.data(), part.size());
  }
  return fmt::format("{} bytes, {} ns, {}", file.size(), file.modified_ns(), hash_to_hex(hasher.digest()));
}

IndexSource index_source(const IndexedDataset& dataset) {
  return {.name = dataset.prefix(),
          .folder = dataset.prefix() + "/cache",
          .content = {{"idx", fingerprint(dataset.idx())}, {"bin", fingerprint(dataset.bin())}}};
}

CachedIndex cached_index(const IndexSource& source, const IndexCacheKey& key, const IndexCache& cache,
                         const std::function<CachedIndex(IndexProgress&)>& build) {
  json description = key.description;
  description["format"] = 2;
  if (source.content.is_object()) description.update(source.content);
  std::vector<CacheEntry> entries;
  for (const fs::path& folder : folders_of(source, cache)) entries.emplace_back(folder, key, description);
  IndexFolders folders(source.name, std::move(entries), cache);
  if (auto index = folders.load()) return *std::move(index);
  const bool is_locked = folders.lock_next();
  if (is_locked) {
    if (auto index = folders.load()) return *std::move(index);
  } else if (cache.place == IndexCache::Place::near_data) {
    warn(
        "no folder for the index of {} can be written: every process that reads it builds its own. "
        "--data-cache-path names a folder",
        printable(source.name, 1000));
  }
  CachedIndex built = build_reported(source.name, cache, build);
  TERATRON_ASSERT(built.arrays.size() == key.arrays.size(), "{} arrays", built.arrays.size());
  return is_locked ? folders.keep(std::move(built)) : built;
}

}  // namespace teratron
