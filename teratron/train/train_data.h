// The train, valid and test datasets of a training.
#pragma once

#include <array>
#include <memory>

#include "teratron/train/batch_source.h"
#include "teratron/train/registry.h"

namespace teratron {

enum class Split : uint8_t { train, valid, test };

class TrainData {
 public:
  /// Builds the indices on ranks that read: tensor-parallel rank 0 of each stage that uses data. Collective.
  TrainData(const Registry::Context& context, const Registry& registry, at::Device device);

  bool has(Split split) const { return present_[static_cast<size_t>(split)]; }
  /// Micro-batches of this data-parallel rank after the given number of consumed samples.
  std::unique_ptr<BatchSource> open(Split split, int64_t consumed_samples) const;

 private:
  Arguments args_;
  at::Device device_;
  Mesh mesh_;
  std::array<std::shared_ptr<const Dataset>, 3> datasets_;
  std::array<bool, 3> present_ = {};
};

/// Converts --num-train-epochs to train_iters; other settings are unchanged. Builds the training data's
/// indices. Collective.
Arguments with_epochs(const Registry::Context& context, const Registry& registry);

}  // namespace teratron
