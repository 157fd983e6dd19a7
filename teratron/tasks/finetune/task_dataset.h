// Rows of finetuning samples in the order of PyTorch's DistributedSampler, for the loader of a training,
// which gives consecutive micro-batches to the replicas in turn.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/tasks/finetune/pair_samples.h"

namespace teratron {

struct TaskOrderOptions {
  int64_t samples = 0;
  int64_t micro_batch = 1;  // samples of a replica
  int64_t replicas = 1;
  bool keep_last = false;             // the last micro-batch of an epoch, filled up with nothing
  std::optional<uint64_t> seed = {};  // of the first epoch's shuffle; absent: each sample once, in order
  bool same_shuffle = false;          // in each epoch
};

/// In an epoch, replica r takes the samples r, r + replicas, ... of a permutation. The permutation begins
/// again where replicas would get fewer.
class TaskOrder {
 public:
  explicit TaskOrder(const TaskOrderOptions& options);
  /// Micro-batches of a replica in an epoch.
  int64_t batches() const { return batches_; }
  /// Limits an epoch to so many.
  void limit_batches(int64_t batches) { batches_ = batches; }
  /// Sample number i of the loader; nullopt: a place that stays empty.
  std::optional<int64_t> at(int64_t i) const;
  /// Places of an epoch in the loader.
  int64_t places() const { return batches_ * options_.micro_batch * options_.replicas; }

 private:
  std::shared_ptr<const std::vector<int64_t>> permutation(int64_t epoch) const;

  TaskOrderOptions options_;
  int64_t batches_;
  mutable std::mutex mutex_;
  mutable int64_t epoch_ = -1;
  mutable std::shared_ptr<const std::vector<int64_t>> permutation_;  // of epoch_
};

/// Columns of bert_classifier_schema(). A sample has as many rows as it has pairs. Rows of empty places have
/// the label -1.
class TaskDataset : public Dataset {
 public:
  struct Rows {
    std::shared_ptr<const PairSamples> samples;
    std::shared_ptr<const TaskOrder> order;
    SpecialTokens special;
    int64_t length = 0;
  };
  TaskDataset(Rows rows, int64_t size) : rows_(std::move(rows)), size_(size) {}
  int64_t size() const override { return size_; }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

 private:
  Rows rows_;
  int64_t size_;
};

}  // namespace teratron
