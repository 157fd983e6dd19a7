// TrainLoop: saving checkpoints.
#include "teratron/base/log.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/run_info.h"
#include "teratron/train/train_loop.h"

namespace teratron {

namespace {

GridPosition position_of(const Mesh& mesh) {
  return {.tp_rank = mesh.group(Axis::tp).rank,
          .tp_size = mesh.group(Axis::tp).size,
          .pp_rank = mesh.group(Axis::pp).rank,
          .pp_size = mesh.group(Axis::pp).size};
}

}  // namespace

std::optional<SaveMetrics> TrainLoop::save() {
  if (is_first_rank()) print("saving checkpoint at iteration {:7d} to {}", state().iteration, *args().save);
  saving_ = {.iteration = state().iteration,
             .flops = state().floating_point_operations,
             .tokens = state().consumed_train_samples * tokens_per_sample(args())};
  Timers timers(0);
  std::optional<SaveMetrics> saved;
  {
    const auto timed = timers.scope("save-checkpoint");
    saved = trainer_.save();
  }
  if (args().timing_log_level > 0) report_timers(timers, 1);
  return saved;
}

void TrainLoop::log_save(const SaveMetrics& saved) {
  saving_.wall_time = wall_clock();
  if (progress_log_) progress_log_->saved(saving_);
  if (is_first_rank()) {
    print_line(save_line(saved.iteration, saved.directory, position_of(trainer_.mesh())));
  }
  emit(saved);
}

void TrainLoop::handle_save(const std::function<std::optional<SaveMetrics>()>& saving) {
  try {
    if (const auto saved = saving()) log_save(*saved);
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::checkpoint) throw;
    if (is_first_rank()) warn("{} That checkpoint was not saved; the next save tries again", fault.what());
  }
}

void TrainLoop::save_now() {
  handle_save([this] { return trainer_.finish_save(); });
  if (!args().save || trainer_.is_saved()) return;
  handle_save([this] { return save(); });
  handle_save([this] { return trainer_.finish_save(); });
}

}  // namespace teratron
