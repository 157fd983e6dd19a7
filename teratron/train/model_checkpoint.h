// Saves and loads an engine's tensors (ckpt/checkpoint.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "teratron/ckpt/background_save.h"
#include "teratron/train/engine.h"

namespace teratron {

/// JSON objects of a checkpoint.
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
std::filesystem::path save_model(TrainEngine& engine, const SaveOptions& options);
/// The same in the background: tensors are copied to host memory (pinned, from a GPU) before this returns, so
/// training may continue. The save must not outlive the engine. Collective over the mesh.
std::unique_ptr<BackgroundSave> start_saving_model(TrainEngine& engine, const SaveOptions& options);

struct LoadOptions {
  std::filesystem::path directory;
  std::optional<int64_t> iteration;
  std::string config = "{}";  // of this run; a different model is rejected
  bool optimizer = true;
  bool finetune = false;  // allows other rotary positions than the checkpoint's, with a notice
  bool own = true;        // this run saves to the directory: damaged checkpoints may be renamed
};

/// Loads into the engine; nullopt if there is no checkpoint. Weights of another dtype are converted, with a
/// notice. Without optimizer state, master weights are computed from the weights. Collective.
std::optional<CheckpointInfo> load_model(TrainEngine& engine, const LoadOptions& options);

/// Loads weights alone into a model without an engine. `path` is an iter_* directory. Collective over
/// `peers`.
void load_weights(ParameterSet& parameters, const std::filesystem::path& path, HostGroup& peers);

}  // namespace teratron
