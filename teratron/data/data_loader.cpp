#include "teratron/data/data_loader.h"

#include <algorithm>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Batch read_batch(const Dataset& dataset, const std::vector<int64_t>& indices) {
  Batch batch;
  batch.micro_batch = static_cast<int64_t>(indices.size());
  batch.seq_length = dataset.sequence_length();
  Sample sample;
  for (const int64_t index : indices) {
    dataset.get(index, sample);
    append(batch.tokens, sample.tokens);
    append(batch.labels, sample.labels);
    append(batch.position_ids, sample.position_ids);
    append(batch.loss_mask, sample.loss_mask);
    append(batch.segment_start, sample.segment_start);
  }
  const bool reset = std::any_of(batch.segment_start.begin(), batch.segment_start.end(),
                                 [](int32_t start) { return start != 0; });
  if (!reset) batch.segment_start.clear();
  return batch;
}

std::unique_ptr<BatchSampler> build_sampler(const Dataset& dataset, BatchSamplerOptions options) {
  if (options.total_samples == 0) options.total_samples = dataset.size();
  TERATRON_ASSERT(options.total_samples <= dataset.size(), "{} samples of {}", options.total_samples,
                  dataset.size());
  return build_batch_sampler(options);
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)),
      sampler_(build_sampler(*dataset_, options.sampler)),
      cyclic_(options.sampler.kind == SamplerKind::cyclic),
      batches_(
          options.num_workers, int64_t{options.num_workers} * std::max(options.prefetch_factor, 1),
          [this] { return next_indices(); },
          [this](const std::vector<int64_t>& indices) { return read_batch(*dataset_, indices); }) {}

/// A cyclic sampler returns nothing at the end of an epoch and starts the next one when called again.
std::optional<std::vector<int64_t>> DataLoader::next_indices() {
  auto indices = sampler_->next();
  if (!indices && cyclic_) indices = sampler_->next();
  return indices;
}

}  // namespace teratron
