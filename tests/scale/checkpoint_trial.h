// Saving, finding and loading a checkpoint of small tensors on all ranks.
#pragma once

#include <filesystem>
#include <memory>

#include "teratron/ckpt/background_removal.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {

/// The tensors are those of a transformer of 16 layers on tensor-parallel size 8 with a distributed optimizer
/// over the other ranks, and 4 that are cut over all ranks, as experts are.
class CheckpointTrial {
 public:
  CheckpointTrial(std::filesystem::path folder, HostGroup& group)
      : folder_(std::move(folder)), group_(group) {}

  void save();
  /// Finds what was saved, for inference. Fault if it is not there.
  void find();
  /// Loads what was found and compares every element. Fault if one differs.
  void load_found();
  /// Reads it part by part, as weights with adapters are read.
  void read_found();
  /// Finds it, loads it and compares every element.
  void load();
  /// Saves another and, on rank 0, begins to remove the first one...
  void replace();
  /// ...for which this waits.
  void finish_removal() { removal_.reset(); }

 private:
  TestTensors tensors() const;
  void save(int64_t iteration, const Retention& retain);
  void expect_saved(const TestTensors& tensors) const;

  std::filesystem::path folder_;
  HostGroup& group_;
  std::unique_ptr<SharedManifest> found_;
  std::shared_ptr<BackgroundRemoval> removal_ = std::make_shared<BackgroundRemoval>();
};

}  // namespace teratron
