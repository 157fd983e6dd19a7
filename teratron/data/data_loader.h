// Micro-batches of one data-parallel rank, prefetched by worker threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "teratron/data/batch_sampler.h"
#include "teratron/data/dataset.h"
#include "teratron/data/ordered_map.h"

namespace teratron {

struct DataLoaderOptions {
  BatchSamplerOptions sampler;  // total_samples 0: the whole dataset
  int num_workers = 2;          // 0: next() reads
  int prefetch_factor = 2;      // batches read ahead per worker
};

/// The batches and their order do not depend on the number of workers. Not thread-safe.
class DataLoader {
 public:
  /// Reads the columns of `schema`.
  DataLoader(std::shared_ptr<const Dataset> dataset, BatchSchema schema, const DataLoaderOptions& options);

  /// The next micro-batch; nothing at the end of a single pass (cyclic never ends). An error while reading a
  /// batch (UserError(data), Fault) is thrown in its place.
  std::optional<Batch> next() { return batches_.next(); }

 private:
  std::optional<std::vector<int64_t>> next_indices();

  std::shared_ptr<const Dataset> dataset_;
  BatchSchema schema_;
  std::unique_ptr<BatchSampler> sampler_;
  bool cyclic_;
  OrderedParallelMap<std::vector<int64_t>, Batch> batches_;  // last: its threads use the members above
};

}  // namespace teratron
