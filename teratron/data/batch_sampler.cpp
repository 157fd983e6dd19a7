#include "teratron/data/batch_sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/torch_randperm.h"

namespace teratron {

namespace {

class SingleSampler : public BatchSampler {
 public:
  explicit SingleSampler(const BatchSamplerOptions& options)
      : options_(options), next_(options.consumed_samples) {}

  std::optional<std::vector<int64_t>> next() override {
    const int64_t step = options_.micro_batch_size * options_.dp_size;
    const int64_t last = options_.drop_last ? options_.total_samples - step : options_.total_samples - 1;
    if (next_ > last) return {};
    const int64_t start = next_ + options_.dp_rank * options_.micro_batch_size;
    const int64_t end = std::min(start + options_.micro_batch_size, options_.total_samples);
    next_ += step;
    std::vector<int64_t> batch(static_cast<size_t>(std::max<int64_t>(end - start, 0)));
    std::iota(batch.begin(), batch.end(), start);
    return batch;
  }

 private:
  BatchSamplerOptions options_;
  int64_t next_;
};

class CyclicSampler : public BatchSampler {
 public:
  explicit CyclicSampler(const BatchSamplerOptions& options)
      : options_(options), consumed_(options.consumed_samples) {}

  std::optional<std::vector<int64_t>> next() override {
    if (order_.empty()) start_epoch();
    const int64_t micro = options_.micro_batch_size;
    if (position_ + micro > static_cast<int64_t>(order_.size())) {
      order_.clear();
      return {};
    }
    const auto start = order_.begin() + position_;
    position_ += micro;
    consumed_ += micro * options_.dp_size;
    return std::vector<int64_t>(start, start + micro);
  }

 private:
  void start_epoch() {
    const int64_t step = options_.micro_batch_size * options_.dp_size;
    const int64_t total = options_.total_samples;
    const int64_t active = total - total % step;
    const auto epoch = static_cast<uint64_t>(consumed_ / active);
    const int64_t offset = consumed_ % active;
    if (options_.data_sharding) {
      const int64_t bucket = total / step * options_.micro_batch_size;
      order_ = torch_randperm(bucket, epoch);
      order_.erase(order_.begin(), order_.begin() + offset / options_.dp_size);
      for (int64_t& sample : order_) sample += options_.dp_rank * bucket;
    } else {
      const auto all = torch_randperm(total / options_.micro_batch_size * options_.micro_batch_size, epoch);
      // Megatron-LM goes on to the end of `all`, so that some ranks may have a micro-batch more than others
      // and begin the next epoch a step later, in the middle.
      for (int64_t i = offset + options_.dp_rank; i < active; i += options_.dp_size)
        order_.push_back(all[static_cast<size_t>(i)]);
    }
    position_ = 0;
  }

  BatchSamplerOptions options_;
  int64_t consumed_;
  std::vector<int64_t> order_;  // of this epoch and rank; empty: the epoch has not started
  int64_t position_ = 0;
};

class FullValidationSampler : public BatchSampler {
 public:
  explicit FullValidationSampler(const BatchSamplerOptions& options)
      : options_(options), next_(options.dp_rank) {}

  std::optional<std::vector<int64_t>> next() override {
    if (next_ >= options_.total_samples) return {};
    next_ += options_.dp_size;
    return std::vector<int64_t>{next_ - options_.dp_size};
  }

 private:
  BatchSamplerOptions options_;
  int64_t next_;
};

}  // namespace

std::unique_ptr<BatchSampler> build_batch_sampler(const BatchSamplerOptions& options) {
  TERATRON_ASSERT(options.micro_batch_size > 0 && options.dp_size > 0 && options.consumed_samples >= 0);
  TERATRON_ASSERT(options.dp_rank >= 0 && options.dp_rank < options.dp_size);
  if (options.kind == SamplerKind::full_validation) return std::make_unique<FullValidationSampler>(options);
  if (options.kind == SamplerKind::single) return std::make_unique<SingleSampler>(options);
  const int64_t step = options.micro_batch_size * options.dp_size;
  if (options.total_samples < step) {
    throw config_error(
        {.what = fmt::format("{} samples are fewer than the {} of a step (micro-batch {} x data-parallel "
                             "size {})",
                             options.total_samples, step, options.micro_batch_size, options.dp_size),
         .where = "--dataloader-type cyclic",
         .fix = "Use more data, a smaller micro-batch or fewer ranks"});
  }
  if (options.consumed_samples % step != 0) {
    throw config_error(
        {.what = fmt::format("{} consumed samples are not a multiple of the {} of a step (micro-batch {} x "
                             "data-parallel size {})",
                             options.consumed_samples, step, options.micro_batch_size, options.dp_size),
         .where = "--dataloader-type cyclic",
         .fix = "Resume with a micro-batch and data-parallel size that divide it, or use "
                "--dataloader-type single"});
  }
  return std::make_unique<CyclicSampler>(options);
}

}  // namespace teratron
