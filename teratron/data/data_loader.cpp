#include "teratron/data/data_loader.h"

#include <algorithm>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

Batch read_batch(const Dataset& dataset, const BatchSchema& schema, const std::vector<int64_t>& indices) {
  Batch batch(schema, static_cast<int64_t>(indices.size()));
  for (size_t i = 0; i < indices.size(); ++i) dataset.get(indices[i], batch.sample(static_cast<int64_t>(i)));
  return batch;
}

std::unique_ptr<BatchSampler> build_sampler(const Dataset& dataset, BatchSamplerOptions options) {
  if (options.total_samples == 0) options.total_samples = dataset.size();
  TERATRON_ASSERT(options.total_samples <= dataset.size(), "{} samples of {}", options.total_samples,
                  dataset.size());
  return build_batch_sampler(options);
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, BatchSchema schema,
                       const DataLoaderOptions& options)
    : dataset_(std::move(dataset)),
      schema_(std::move(schema)),
      sampler_(build_sampler(*dataset_, options.sampler)),
      cyclic_(options.sampler.kind == SamplerKind::cyclic),
      batches_(
          options.num_workers, int64_t{options.num_workers} * std::max(options.prefetch_factor, 1),
          [this] { return next_indices(); },
          [this](const std::vector<int64_t>& indices) { return read_batch(*dataset_, schema_, indices); }) {}

/// A cyclic sampler returns nothing at the end of an epoch and starts the next one when called again.
std::optional<std::vector<int64_t>> DataLoader::next_indices() {
  auto indices = sampler_->next();
  if (!indices && cyclic_) indices = sampler_->next();
  return indices;
}

}  // namespace teratron
