#include "teratron/data/indexed/index_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/hash.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/data/indexed/indexed_dataset.h"

namespace teratron {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Size, modification time and a hash of the first and last MiB: enough to detect a replaced file.
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

std::vector<fs::path> folders_of(const IndexedDataset& dataset, const IndexCache& cache) {
  if (cache.place == IndexCache::Place::memory) return {};
  if (cache.place == IndexCache::Place::folder) return {cache.folder};
  std::vector<fs::path> folders = {fs::path(dataset.prefix()) / "cache", cache.folder, temporary_folder()};
  std::erase(folders, fs::path());
  return folders;
}

/// Waits for the lock of an index, saying so: the process that holds it builds.
FileLock wait_for_builder(const CacheEntry& entry, const std::string& prefix) {
  if (auto lock = FileLock::try_acquire(entry.lock())) return *std::move(lock);
  std::optional<FileLock> reporter;  // of all that wait, one reports
  const PeriodicReport report(kReportInterval, [&](int64_t seconds) {
    if (!reporter) reporter = FileLock::try_acquire(entry.lock().string() + ".wait");
    if (reporter)
      notice("waiting for the index of {} that another process builds in {} ({} s)", printable(prefix, 1000),
             printable(entry.folder().string(), 1000), seconds);
  });
  return FileLock::acquire(entry.lock());
}

CachedIndex build_reported(const std::string& prefix,
                           const std::function<CachedIndex(IndexProgress&)>& build) {
  IndexProgress progress;
  const PeriodicReport report(kReportInterval, [&](int64_t seconds) {
    const std::string text = progress.text();
    notice("building the index of {} ({} s){}{}", printable(prefix, 1000), seconds, text.empty() ? "" : ": ",
           text);
  });
  return build(progress);
}

/// Where an index can be kept: a folder in which it can be locked.
struct LockedEntry {
  const CacheEntry* entry;
  FileLock lock;
};

/// Whether the user chose the folder: then it is an error if it cannot be used.
bool is_chosen(const IndexCache& cache) {
  return cache.place == IndexCache::Place::folder;
}

/// Locks the index in the first folder that can be written.
std::optional<LockedEntry> lock_first(std::span<const CacheEntry> entries, const IndexCache& cache,
                                      const std::string& prefix) {
  for (const CacheEntry& entry : entries) {
    try {
      make_directories(entry.folder(), ExitCode::data);
      return LockedEntry{&entry, wait_for_builder(entry, prefix)};
    } catch (const UserError&) {
      if (is_chosen(cache)) throw;
    } catch (const Fault&) {  // no locks on this file system, or an I/O error
      if (is_chosen(cache)) throw;
    }
  }
  return std::nullopt;
}

std::optional<CachedIndex> load_any(std::span<const CacheEntry> entries) {
  for (const CacheEntry& entry : entries) {
    if (auto index = entry.load()) return index;
  }
  return {};
}

/// Keeps a new index in the locked folder or, if that fails (a full disk), in a later one, and returns it
/// without its memory; with it if no folder has room.
CachedIndex keep(CachedIndex built, LockedEntry locked, std::span<const CacheEntry> entries,
                 const IndexCache& cache, const std::string& prefix) {
  while (true) {
    std::string reason;
    try {
      locked.entry->save(built, prefix);
      if (auto stored = locked.entry->load()) return *std::move(stored);
    } catch (const std::exception& error) {
      if (is_chosen(cache)) throw;
      reason = error.what();
    }
    entries = entries.subspan(static_cast<size_t>(locked.entry - entries.data()) + 1);
    auto next = lock_first(entries, cache, prefix);
    if (next) {
      locked = *std::move(next);
      continue;
    }
    warn("the index of {} is kept in the memory of each process that reads it: {}", printable(prefix, 1000),
         reason);
    return built;
  }
}

}  // namespace

CachedIndex cached_index(const IndexedDataset& dataset, const IndexCacheKey& key, const IndexCache& cache,
                         const std::function<CachedIndex(IndexProgress&)>& build) {
  const std::string prefix = dataset.prefix();
  json description = key.description;
  description.update(
      {{"format", 2}, {"idx", fingerprint(dataset.idx())}, {"bin", fingerprint(dataset.bin())}});
  std::vector<CacheEntry> entries;
  for (const fs::path& folder : folders_of(dataset, cache)) entries.emplace_back(folder, key, description);
  if (auto index = load_any(entries)) return *std::move(index);
  auto locked = lock_first(entries, cache, prefix);
  if (locked) {
    if (auto index = load_any(entries)) return *std::move(index);
  } else if (cache.place == IndexCache::Place::near_data) {
    warn(
        "no folder for the index of {} can be written: every process that reads it builds its own. "
        "--data-cache-path names a folder",
        printable(prefix, 1000));
  }
  CachedIndex built = build_reported(prefix, build);
  TERATRON_ASSERT(built.arrays.size() == key.arrays.size(), "{} arrays", built.arrays.size());
  return locked ? keep(std::move(built), *std::move(locked), entries, cache, prefix) : built;
}

}  // namespace teratron
