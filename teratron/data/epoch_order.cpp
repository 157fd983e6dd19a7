#include "teratron/data/epoch_order.h"

#include "teratron/base/error.h"
#include "teratron/data/torch_randperm.h"

namespace teratron {

EpochOrder::EpochOrder(const Options& options)
    : options_(options), size_(options.samples.value_or(options.count)) {
  TERATRON_ASSERT(options_.count > 0 || size_ == 0, "{} samples of nothing", size_);
}

int64_t EpochOrder::at(int64_t i) const {
  TERATRON_ASSERT(0 <= i && i < size_, "sample {} of {}", i, size_);
  const int64_t place = i % options_.count;
  return options_.shuffle ? epoch(i / options_.count)->order[static_cast<size_t>(place)] : place;
}

std::shared_ptr<const EpochOrder::Epoch> EpochOrder::epoch(int64_t number) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Epoch>& kept = kept_[static_cast<size_t>(number % 2)];
  if (!kept || kept->number != number) {
    const uint64_t seed = *options_.shuffle + static_cast<uint64_t>(number);
    kept = std::make_shared<const Epoch>(Epoch{number, torch_randperm(options_.count, seed)});
  }
  return kept;
}

}  // namespace teratron
