// A cache folder for arrays that are computed from an indexed dataset: built by one process, read by all that
// share the folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/data/indexed/index_array.h"
#include "teratron/data/indexed/index_progress.h"

namespace teratron {

class IndexedDataset;

/// Where indices are kept.
struct IndexCache {
  enum class Place : uint8_t {
    memory,    // of each process
    folder,    // `folder`; UserError if it cannot be written
    near_data  // PREFIX/cache as Megatron-LM does, else `folder` unless empty, else a folder of this user in
               // the host's temporary files, else memory, with a warning
  };
  Place place = Place::memory;
  std::string folder = {};
};

struct IndexCacheKey {
  std::string kind;                 // begins the names of its files
  nlohmann::json description;       // all that the arrays depend on besides the data
  std::vector<std::string> arrays;  // their names: "document_index"
};

struct CachedIndex {
  nlohmann::json numbers = nlohmann::json::object();  // kept next to the arrays
  std::vector<IndexArray> arrays;                     // as many as names
};

/// build() through a cache. File names contain a hash of the description and of size, modification time and
/// parts of the data files. One process builds; the others wait for it as long as it lives, and build
/// themselves if it dies. Builder and waiters report every few seconds (index_progress.h). Arrays are .npy
/// files, of which nothing is kept in memory. Damaged files are built again.
CachedIndex cached_index(const IndexedDataset& dataset, const IndexCacheKey& key, const IndexCache& cache,
                         const std::function<CachedIndex(IndexProgress&)>& build);

}  // namespace teratron
