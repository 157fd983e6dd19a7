#include "teratron/train/loop/save_policy.h"

#include "teratron/base/log.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

GridPosition position_of(const Mesh& mesh) {
  return {.tp_rank = mesh.group(Axis::tp).rank,
          .tp_size = mesh.group(Axis::tp).size,
          .pp_rank = mesh.group(Axis::pp).rank,
          .pp_size = mesh.group(Axis::pp).size};
}

}  // namespace

void SavePolicy::open_progress(double start_time) {
  const Arguments& args = trainer_.args();
  if (!args.log_progress || !args.save || !trainer_.is_first_rank()) return;
  progress_log_ = std::make_unique<ProgressLog>(
      *args.save, ProgressLog::Start{.world_size = trainer_.mesh().world_size(),
                                     .flops = trainer_.state().floating_point_operations,
                                     .wall_time = start_time});
}

std::optional<SaveMetrics> SavePolicy::start() {
  const Arguments& args = trainer_.args();
  const TrainState& state = trainer_.state();
  if (trainer_.is_first_rank())
    print("saving checkpoint at iteration {:7d} to {}", state.iteration, *args.save);
  last_ = {.iteration = state.iteration,
           .flops = state.floating_point_operations,
           .tokens = state.consumed_train_samples * tokens_per_sample(args)};
  Timers timers(0);
  std::optional<SaveMetrics> saved;
  {
    const auto timed = timers.scope("save-checkpoint");
    saved = trainer_.save();
  }
  if (args.timing_log_level > 0) log_.timers(timers, 1);
  return saved;
}

void SavePolicy::log(const SaveMetrics& saved) {
  last_.wall_time = wall_clock();
  if (progress_log_) progress_log_->saved(last_);
  if (trainer_.is_first_rank())
    print_line(save_line(saved.iteration, saved.directory, position_of(trainer_.mesh())));
  log_.emit(saved);
}

void SavePolicy::handle(const std::function<std::optional<SaveMetrics>()>& saving) {
  try {
    if (const auto saved = saving()) log(*saved);
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::checkpoint) throw;
    if (trainer_.is_first_rank())
      warn("{} That checkpoint was not saved; the next save tries again", fault.what());
  }
}

void SavePolicy::advance() {
  handle([this] { return trainer_.saver().advance(); });
}

void SavePolicy::finish() {
  handle([this] { return trainer_.saver().finish(); });
}

void SavePolicy::save() {
  if (!is_due()) return;
  finish();
  handle([this] { return start(); });
}

void SavePolicy::save_now() {
  finish();
  if (!is_due()) return;
  handle([this] { return start(); });
  finish();
}

std::optional<SaveMetrics> SavePolicy::save_last() {
  if (!is_due()) return std::nullopt;
  const std::optional<SaveMetrics> saved = start();
  return saved ? saved : trainer_.saver().finish();
}

}  // namespace teratron
