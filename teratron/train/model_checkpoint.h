// A trainer's tensors in and out of checkpoints (ckpt/checkpoint.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "teratron/ckpt/background_save.h"
#include "teratron/train/engine.h"

namespace teratron {

/// What else a checkpoint holds: JSON objects.
struct CheckpointTexts {
  std::string config = "{}";  // settings of the run
  std::string state = "{}";   // counters, scheduler, loss scale
};

struct SaveOptions {
  std::filesystem::path directory;
  int64_t iteration = 0;
  CheckpointTexts texts;
  bool optimizer = true;
  int64_t retain_interval = 0;  // as of SaveRequest
};

/// Saves weights and optimizer state; returns the committed directory. Collective over the mesh.
std::filesystem::path save_model(Trainer& trainer, const SaveOptions& options);
/// The same in the background: what is saved is copied to host memory before this returns (pinned where it lies on a
/// GPU), so the trainer may go on. The save must not outlive the trainer. Collective over the mesh.
std::unique_ptr<BackgroundSave> start_saving_model(Trainer& trainer, const SaveOptions& options);

struct LoadOptions {
  std::filesystem::path directory;
  std::optional<int64_t> iteration;
  std::string config = "{}";  // this run's; another model is rejected
  bool optimizer = true;
  bool finetune = false;  // rotary positions may be others than those of the checkpoint, which a notice says
  bool own = true;        // this run saves to the directory: what is damaged there may be renamed
};

/// Loads into the trainer; nothing where there is no checkpoint. Weights of another dtype are converted, which
/// a notice says. Without optimizer state, master weights follow from the weights. Collective.
std::optional<CheckpointInfo> load_model(Trainer& trainer, const LoadOptions& options);

/// Weights alone into a model without a trainer. `path` is an iter_* directory. Collective over `peers`.
void load_weights(ParameterSet& parameters, const std::filesystem::path& path, Peers& peers);

}  // namespace teratron
