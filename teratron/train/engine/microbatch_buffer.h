// The micro-batches of a step while its schedule runs.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "teratron/models/model.h"

namespace teratron {

/// Returns the micro-batches of a step: called once per index, in order.
using MicroBatches = std::function<MicroBatch(int64_t index)>;

/// Reads the micro-batches of a step in order, each once, and holds them until the last chunk has used them.
class MicroBatchBuffer {
 public:
  /// `saved` receives every micro-batch that is read; may be null.
  MicroBatchBuffer(MicroBatches source, bool training, std::vector<MicroBatch>* saved = nullptr)
      : source_(std::move(source)), training_(training), saved_(saved) {}

  const MicroBatch& at(int64_t index) {
    for (; next_ <= index; ++next_) {
      MicroBatch batch = source_(next_);
      batch.training = training_;
      batch.auxiliary = auxiliary_;
      if (saved_) saved_->push_back(batch);
      held_.emplace(next_, std::move(batch));
    }
    return held_.at(index);
  }
  void drop(int64_t index) { held_.erase(index); }
  /// For the micro-batches that are held and those to come.
  void set_auxiliary(const AuxiliaryLosses& auxiliary) {
    auxiliary_ = auxiliary;
    for (auto& [index, batch] : held_) batch.auxiliary = auxiliary;
  }

 private:
  MicroBatches source_;
  bool training_;
  AuxiliaryLosses auxiliary_;
  std::vector<MicroBatch>* saved_;
  int64_t next_ = 0;
  std::map<int64_t, MicroBatch> held_;
};

}  // namespace teratron
