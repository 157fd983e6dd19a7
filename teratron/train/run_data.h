// The three data sets of a run and where in them it stands.
#pragma once

#include <array>
#include <memory>

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/train/batches.h"
#include "teratron/train/registry.h"

namespace teratron {

enum class Split : uint8_t { train, valid, test };

class RunData {
 public:
  /// Builds the indices on ranks that read: the first tensor-parallel one of each stage that uses data. Collective.
  RunData(const Registry::Run& run, const Registry& registry, at::Device device);

  bool has(Split split) const { return present_[static_cast<size_t>(split)]; }
  /// Micro-batches of this data-parallel rank from the given number of consumed samples on.
  std::unique_ptr<BatchSource> open(Split split, int64_t consumed_samples) const;

 private:
  Arguments args_;
  at::Device device_;
  Mesh mesh_;
  std::array<std::shared_ptr<const Dataset>, 3> datasets_;
  std::array<bool, 3> present_ = {};
};

/// Samples in one pass over the training data. Collective.
int64_t samples_per_epoch(const Registry::Run& run, const Registry& registry);

/// Samples wanted of train, valid and test.
std::array<std::optional<int64_t>, 3> wanted_samples(const Arguments& args);

}  // namespace teratron
