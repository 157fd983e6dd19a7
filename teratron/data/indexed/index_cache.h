// A cache folder for arrays that are computed from data: built by one process, read by all that share the
// folder.
#pragma once

#include <functional>
#include <stop_token>
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
    near_data  // IndexSource::folder, else `folder` unless empty, else a folder of this user in the host's
               // temporary files, else memory, with a warning
  };
  Place place = Place::memory;
  std::string folder = {};
  std::stop_token stop = {};  // ends a build or the wait for one: Stopped (comm/stopped.h)
};

/// What arrays are computed from.
struct IndexSource {
  std::string name;         // in messages
  std::string folder = {};  // near the data; may be empty
  nlohmann::json content =
      {};  // an object that tells these data from others; null if nothing of them matters
};
/// An indexed dataset by size, modification time and parts of its files. Its folder is PREFIX/cache, as
/// Megatron-LM's.
IndexSource index_source(const IndexedDataset& dataset);
/// Size, modification time and a hash of the first and last MiB of a file: enough to detect a replaced one.
std::string fingerprint(const BinaryReader& file);

struct IndexCacheKey {
  std::string kind;                 // begins the names of its files
  nlohmann::json description;       // all that the arrays depend on besides the source
  std::vector<std::string> arrays;  // their names: "document_index"
};

struct CachedIndex {
  nlohmann::json numbers = nlohmann::json::object();  // kept next to the arrays
  std::vector<IndexArray> arrays;                     // as many as names
};

/// build() through a cache. File names contain a hash of the description and of the source's content. One
/// process builds; the others wait for it as long as it lives, and build themselves if it dies. Builder and
/// waiters report every few seconds (index_progress.h). Arrays are .npy files, of which nothing is kept in
/// memory. Damaged files are built again. Fault point: data.build_index, with the lock held.
CachedIndex cached_index(const IndexSource& source, const IndexCacheKey& key, const IndexCache& cache,
                         const std::function<CachedIndex(IndexProgress&)>& build);

}  // namespace teratron
