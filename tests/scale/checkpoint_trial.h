// Saving, finding and loading a checkpoint of small tensors on all ranks.
#pragma once

#include <filesystem>

#include "teratron/testing/checkpoint_world.h"

namespace teratron {

/// The tensors are those of a transformer of 16 layers on tensor-parallel size 8 with a distributed optimizer
/// over the other ranks, and 4 that are cut over all ranks, as experts are.
class CheckpointTrial {
 public:
  CheckpointTrial(std::filesystem::path folder, HostGroup& group)
      : folder_(std::move(folder)), group_(group) {}

  void save();
  /// Finds what was saved. Fault if it is not there.
  void find();
  /// Loads it and compares every element. Fault if one differs.
  void load();

 private:
  TestTensors tensors() const;

  std::filesystem::path folder_;
  HostGroup& group_;
};

}  // namespace teratron
