// A cache folder for arrays that are computed from an indexed dataset.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/data/indexed/index_array.h"

namespace teratron {

class IndexedDataset;

struct IndexCacheKey {
  std::string kind;                 // begins the names of its files
  nlohmann::json description;       // all that the arrays depend on besides the data
  std::vector<std::string> arrays;  // their names: "document_index"
};

struct CachedIndex {
  nlohmann::json numbers = nlohmann::json::object();  // kept next to the arrays
  std::vector<IndexArray> arrays;                     // as many as names
};

/// build() through a cache folder ("": none). File names contain a hash of the description and of size,
/// modification time and parts of the data files. One process builds, the others wait. Arrays are .npy files.
CachedIndex cached_index(const IndexedDataset& dataset, const IndexCacheKey& key, const std::string& folder,
                         const std::function<CachedIndex()>& build);

}  // namespace teratron
