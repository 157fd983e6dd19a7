#include "teratron/data/indexed/index_cache.h"

#include <filesystem>
#include <optional>

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

std::string array_path(const std::string& stem, const std::string& name) {
  return fmt::format("{}-{}.npy", stem, name);
}

/// The cached index, or nothing. The description is written last and marks a complete index.
std::optional<CachedIndex> load(const std::string& stem, const IndexCacheKey& key, const json& description) {
  if (!fs::exists(stem + ".json")) return {};
  try {
    const json stored = read_json(stem + ".json", {.kind = ExitCode::data});
    if (stored.at("description") != description) return {};
    CachedIndex index{.numbers = stored.at("numbers"), .arrays = {}};
    for (const std::string& name : key.arrays)
      index.arrays.push_back(IndexArray::open(array_path(stem, name)));
    if (stored.at("shapes") == shapes_of(index)) return index;
    warn("{}: the cached index is damaged; rebuilding it", printable(stem, 1000));
  } catch (const UserError& error) {
    warn("{} Rebuilding the index.", error.what());
  } catch (const json::exception&) {
    warn("{}.json: the cached description is damaged; rebuilding the index", printable(stem, 1000));
  }
  return {};
}

}  // namespace

CachedIndex cached_index(const IndexedDataset& dataset, const IndexCacheKey& key, const std::string& folder,
                         const std::function<CachedIndex()>& build) {
  if (folder.empty()) return build();
  make_directories(folder, ExitCode::data);
  json description = key.description;
  description.update(
      {{"format", 2}, {"idx", fingerprint(dataset.idx())}, {"bin", fingerprint(dataset.bin())}});
  const std::string stem =
      (fs::path(folder) / fmt::format("{}-{}", key.kind, hash_to_hex(hash_text(description.dump()))))
          .string();
  if (auto index = load(stem, key, description)) return *std::move(index);
  const FileLock lock = FileLock::acquire(stem + ".lock");  // one process builds, the others then load
  if (auto index = load(stem, key, description)) return *std::move(index);
  CachedIndex built = build();
  TERATRON_ASSERT(built.arrays.size() == key.arrays.size(), "{} arrays", built.arrays.size());
  for (size_t i = 0; i < built.arrays.size(); ++i) built.arrays[i].save(array_path(stem, key.arrays[i]));
  const json stored = {{"description", description},
                       {"dataset", dataset.prefix()},
                       {"numbers", built.numbers},
                       {"shapes", shapes_of(built)}};
  write_text(stem + ".json", stored.dump(2), ExitCode::data);
  return built;
}

}  // namespace teratron
