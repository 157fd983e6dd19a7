#include "teratron/tasks/finetune/task_dataset.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "teratron/data/torch_randperm.h"

namespace teratron {

TaskOrder::TaskOrder(const TaskOrderOptions& options) : options_(options) {
  const int64_t each = (options.samples + options.replicas - 1) / options.replicas;
  const bool keep_last = options.keep_last || !options.seed;
  batches_ = (each + (keep_last ? options.micro_batch - 1 : 0)) / options.micro_batch;
}

std::shared_ptr<const std::vector<int64_t>> TaskOrder::permutation(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (epoch_ != epoch) {
    permutation_ = std::make_shared<const std::vector<int64_t>>(
        torch_randperm(options_.samples, *options_.seed + static_cast<uint64_t>(epoch)));
    epoch_ = epoch;
  }
  return permutation_;
}

std::optional<int64_t> TaskOrder::at(int64_t i) const {
  if (!options_.seed) return i < options_.samples ? std::optional(i) : std::nullopt;
  const int64_t step = options_.micro_batch * options_.replicas;
  const int64_t batch = i / step, in_batch = i % step;
  const int64_t replica = in_batch / options_.micro_batch;
  const int64_t of_replica = batch % batches_ * options_.micro_batch + in_batch % options_.micro_batch;
  const int64_t place = of_replica * options_.replicas + replica;
  const int64_t padded = (options_.samples + options_.replicas - 1) / options_.replicas * options_.replicas;
  if (place >= padded) return std::nullopt;
  return permutation(options_.same_shuffle ? 0 : batch / batches_)->at(place % options_.samples);
}

void TaskDataset::get(int64_t i, const Sample& sample) const {
  const PairSamples& all = *rows_.samples;
  const int64_t pairs = all.pairs_per_sample;
  const std::optional<int64_t> number = rows_.order->at(i / pairs);
  // An empty place has the texts of some sample.
  const PairSamples::Sample& chosen = all.samples.at(number.value_or(0));
  const PairRow row = pair_row(all, all.pairs.at(chosen.first_pair + i % pairs), rows_.special, rows_.length);
  const auto used = static_cast<int64_t>(row.tokens.size());
  const std::span<int64_t> tokens = sample.i64("tokens"), types = sample.i64("types");
  std::copy(row.tokens.begin(), row.tokens.end(), tokens.begin());
  std::fill(tokens.begin() + used, tokens.end(), rows_.special.pad.value_or(0));
  std::fill(types.begin(), types.end(), 0);
  std::fill(types.begin() + row.types_begin, types.begin() + used, 1);
  const std::span<int32_t> start = sample.i32("segment_start");
  std::fill(start.begin(), start.begin() + used, 0);
  std::fill(start.begin() + used, start.end(), static_cast<int32_t>(used));
  sample.i64("labels")[0] = number ? chosen.label : -1;
}

std::string TaskDataset::describe() const {
  return fmt::format("{} samples of {}", rows_.samples->samples.size(), rows_.samples->name);
}

}  // namespace teratron
