#include "teratron/train/checkpoint/checkpoint_saver.h"

#include <utility>

#include "teratron/base/log.h"

namespace teratron {

void CheckpointSaver::reserve_memory() {
  if (has_reserved_ || !run_.args.async_save || !run_.args.save) return;
  has_reserved_ = true;
  memory_ = std::make_shared<SnapshotMemory>(run_.engine.options().device);
  prepare_save(run_.engine, saves_optimizer(), *memory_);
}

void CheckpointSaver::prepare_step(StepInputs& inputs) {
  reserve_memory();
  if (!pending_) return;
  inputs.progress = pending_->writer->progress();
  inputs.before_update = [snapshot = pending_->snapshot] { snapshot->before_update(); };
}

std::optional<SaveMetrics> CheckpointSaver::save() {
  finish();
  const Arguments& args = run_.args;
  if (!removal_) removal_ = std::make_shared<BackgroundRemoval>();
  PendingSave current{.iteration = run_.state.iteration};
  SaveRequest request{
      .directory = args.save.value(),
      .iteration = run_.state.iteration,
      .config = run_.config,
      .state = run_.state.to_json(),
      .retain = {.interval = args.save_retain_interval.value_or(0), .last = args.keep_last.value_or(0)},
      .nodes = run_.folders,
      .removal = removal_};
  reserve_memory();
  if (memory_ && start(current, request)) {
    progress_ = 0;
    pending_ = std::move(current);
    return std::nullopt;
  }
  return committed(current, save_model(run_.engine, std::move(request), saves_optimizer()));
}

// False if a rank has no memory for the copy: then this save and all later ones are synchronous.
bool CheckpointSaver::start(PendingSave& save, const SaveRequest& request) {
  try {
    auto [writer, snapshot] = save_model_async(run_.engine, request, saves_optimizer(), memory_);
    save.writer = std::move(writer);
    save.snapshot = std::move(snapshot);
    return true;
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::out_of_memory) throw;
    if (run_.is_first_rank())
      warn("--async-save: {}. Training waits for every save from now on", fault.what());
    memory_.reset();
    return false;
  }
}

std::optional<SaveMetrics> CheckpointSaver::advance() {
  if (!pending_) return std::nullopt;
  PendingSave current = *std::exchange(pending_, std::nullopt);  // it has ended if it throws
  const auto saved = current.writer->advance(progress_);
  if (saved) return committed(current, *saved);
  pending_ = std::move(current);
  return std::nullopt;
}

std::optional<SaveMetrics> CheckpointSaver::finish() {
  if (!pending_) return std::nullopt;
  const PendingSave current = *std::exchange(pending_, std::nullopt);
  return committed(current, current.writer->finish());
}

SaveMetrics CheckpointSaver::committed(const PendingSave& save, const SavedCheckpoint& saved) {
  saved_iteration_ = save.iteration;
  return {.iteration = save.iteration,
          .directory = *run_.args.save,
          .seconds = saved.seconds,
          .bytes = saved.bytes};
}

}  // namespace teratron
