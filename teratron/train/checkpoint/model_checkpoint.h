// Saves and loads an engine's tensors (ckpt/checkpoint.h).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "teratron/ckpt/async_save.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/models/finetuning.h"
#include "teratron/train/checkpoint/snapshot.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

/// Saves weights and, if `optimizer`, optimizer state: fills in request.tensors. Collective over the mesh.
SavedCheckpoint save_model(TrainEngine& engine, SaveRequest request, bool optimizer = true);

/// What save_model() would save of the weights: names, dtypes and shapes. Collective over the mesh.
std::map<std::string, TensorInfo> saved_weights(TrainEngine& engine);

/// Prepares host memory for save_model_async(), in the background. Collective over the mesh.
void prepare_save(TrainEngine& engine, bool optimizer, SnapshotMemory& memory);

struct BackgroundSave {
  std::unique_ptr<AsyncSave> writer;
  std::shared_ptr<Snapshot> snapshot;
};
/// Saves as save_model() in the background, from a snapshot in `memory`. Training may continue, but only
/// the optimizer may change parameters and its state, after Snapshot::before_update(). The save must not
/// outlive the engine. Collective over the mesh.
BackgroundSave save_model_async(TrainEngine& engine, SaveRequest request, bool optimizer,
                                const std::shared_ptr<SnapshotMemory>& memory);

struct LoadOptions {
  std::filesystem::path directory;
  std::optional<int64_t> iteration;
  std::string config = "{}";                    // of this run; a different model is rejected
  std::vector<std::string> family_fields = {};  // settings of the model beside those of the table
  bool optimizer = true;
  bool evaluates = false;  // without `optimizer`: what layers keep for a training is loaded all the same
  bool finetune = false;   // allows other rotary positions than the checkpoint's, with a notice
  Finetuning other_family = {};  // with `finetune`
  bool own = true;               // this run saves to the directory: damaged checkpoints may be renamed
  std::shared_ptr<const NodeFolders> nodes = nullptr;  // with `own`, as SaveRequest::nodes
  const CheckpointSource* source = nullptr;            // in place of `directory`
};

/// Loads into the engine; nullopt if there is no checkpoint. Weights of another dtype are converted, with a
/// notice. An optimizer's state is that of fp32 weights, in whatever precision the saved training computed.
/// Without optimizer state, master weights are computed from the weights. Collective.
std::optional<CheckpointInfo> load_model(TrainEngine& engine, const LoadOptions& options);

}  // namespace teratron
