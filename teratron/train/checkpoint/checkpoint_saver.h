// Writes a training's checkpoints to --save, at once or, under --async-save, beside the following steps.
#pragma once

#include <memory>
#include <optional>

#include "teratron/ckpt/background_removal.h"
#include "teratron/telemetry/metrics.h"
#include "teratron/train/checkpoint/checkpointed_run.h"
#include "teratron/train/checkpoint/model_checkpoint.h"

namespace teratron {

/// Collective over the mesh, as a step is: all ranks call it in the same order.
class CheckpointSaver {
 public:
  /// `run` must outlive the saver.
  explicit CheckpointSaver(const CheckpointedRun& run) : run_(run) {}

  /// Writes --save/iter_*; returns what was written. Under --async-save, waits for the previous save, starts
  /// one and returns nothing: parameters are copied beside the next step, and only that may change them.
  std::optional<SaveMetrics> save();
  /// Under --async-save, after a step: advances the pending save. Returns what was written once it is
  /// committed. Failures are thrown here, on all ranks after the same step.
  std::optional<SaveMetrics> advance();
  /// Waits for the pending save, if any. A save that is never waited for is lost: run_loop() (cli/program.h)
  /// waits.
  std::optional<SaveMetrics> finish();

  /// Before a step: allocates what saves copy to, once.
  void reserve_memory();
  /// Before a step's update is launched: what the pending save needs of it.
  void prepare_step(StepInputs& inputs);
  /// After a step: how far all ranks are with the pending save.
  void note_step(const StepResult& result) { progress_ = result.progress; }

  /// The current iteration is saved.
  bool is_saved() const { return saved_iteration_ == run_.state.iteration; }
  /// The run was resumed from a checkpoint in --save.
  void note_resumed() { saved_iteration_ = run_.state.iteration; }

 private:
  struct PendingSave {
    int64_t iteration = 0;
    std::unique_ptr<AsyncSave> writer = nullptr;
    std::shared_ptr<Snapshot> snapshot = nullptr;
  };
  bool saves_optimizer() const { return !run_.args.no_save_optim; }
  bool start(PendingSave& save, const SaveRequest& request);
  SaveMetrics committed(const PendingSave& save, const SavedCheckpoint& saved);

  const CheckpointedRun& run_;
  std::shared_ptr<BackgroundRemoval> removal_;  // of old checkpoints, by all saves
  bool has_reserved_ = false;
  std::shared_ptr<SnapshotMemory> memory_;  // under --async-save, from the first step on
  std::optional<PendingSave> pending_;
  int64_t progress_ = 0;  // minimum over the ranks, as of the last step
  int64_t saved_iteration_ = -1;
};

}  // namespace teratron
