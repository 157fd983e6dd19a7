#include "teratron/train/loop/train_loop.h"

#include <algorithm>
#include <utility>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/guards/replica_check.h"

namespace teratron {

namespace {

std::unique_ptr<StepProfiler> make_profiler(const Trainer& trainer) {
  const Arguments& args = trainer.args();
  const int64_t rank = trainer.mesh().rank();
  const std::vector<int64_t> ranks =
      args.profile_ranks.empty() ? std::vector<int64_t>{0} : args.profile_ranks;
  if (!args.profile || std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return nullptr;
  const std::filesystem::path directory = run_directory(args);
  make_directories(directory, ExitCode::config);
  return std::make_unique<StepProfiler>(
      StepProfilerOptions{.first = args.profile_step_start,
                          .last = args.profile_step_end,
                          .file = directory / fmt::format("trace-rank-{}.json", rank),
                          .device = trainer.device()});
}

}  // namespace

TrainLoop::TrainLoop(const Arguments& args, const Mesh& mesh, const StopSignals& signals,
                     const JobModel& model)
    : start_(std::chrono::steady_clock::now()),
      // The earliest of all ranks: ranks that start late must not extend the job's time.
      start_time_(all_reduce_min(*mesh.world().communicator, wall_clock())),
      trainer_(args, mesh, model),
      stop_(trainer_, signals, start_time_) {
  log_.timers(trainer_.timers(), 1);
  if (is_first_rank()) print_line(datetime_line("after dataloaders are built", wall_clock()));
}

bool TrainLoop::load() {
  {
    const auto timed = trainer_.timers().scope("load-checkpoint");
    trainer_.load();
  }
  if (args().load || !trainer_.resumed_folder().empty()) log_.timers(trainer_.timers(), 1);
  const bool finished =
      !args().skip_train && state().iteration > 0 && state().iteration >= trainer_.train_iters();
  trainer_.hf_output().check(finished);
  if (finished) trainer_.hf_output().write(trainer_.train_iters());
  return finished;
}

std::vector<TrainLoop::Interval> TrainLoop::make_intervals() {
  const auto every = [this](const std::optional<int64_t>& steps) {
    return [this, steps] { return steps && state().iteration % *steps == 0; };
  };
  return {
      {every(args().log_interval), [this] { log_.interval(); }},
      {every(args().check_weight_hash_across_dp_replicas_interval),
       [this] { check_replicas(trainer_.engine().parameters(), trainer_.mesh()); }},
      {every(args().eval_interval), [this] { evaluate_at_interval(); }, /*is_untimed=*/true},
      {[this] { return evaluator_.at_epoch_end(); }, [this] { evaluator_.evaluate_epoch(); },
       /*is_untimed=*/true},
      {every(args().generate_interval), unhurried(StopSignals::Work::open_ended, [this] { emit_samples(); })},
      {every(epochs_.iterations), unhurried(StopSignals::Work::open_ended, [this] { epochs_.work(); })},
      {every(args().exit_interval), [this] { stop_.stop(StopPolicy::Reason::interval); }},
      {[this] { return args().save_each_epoch && evaluator_.at_epoch_end(); },
       unhurried(save_work(), [this] { saves_.save(); })},
      {every(args().save_interval), unhurried(save_work(), [this] { saves_.save(); })},
  };
}

std::function<void()> TrainLoop::unhurried(StopSignals::Work kind, std::function<void()> work) {
  return [this, kind, work = std::move(work)] {
    const StopSignals::Unhurried scope = stop_.unhurried(kind);
    work();
  };
}

void TrainLoop::evaluate_at_interval() {
  if (!evaluator_.evaluate(Split::valid, fmt::format("iteration {}", state().iteration))) return;
  trainer_.state().consumed_valid_samples += args().eval_iters * trainer_.eval_batch_size().running;
}

void TrainLoop::emit_samples() {
  for (SampleText& sample : sampler_()) log_.emit(std::move(sample));
}

bool TrainLoop::run_intervals() {
  bool is_untimed = false;
  for (const Interval& interval : intervals_) {
    if (!interval.is_due()) continue;
    interval.work();
    is_untimed = is_untimed || interval.is_untimed;
  }
  return is_untimed;
}

// The host runs one step ahead of the device, unless its next action depends on the step's result.
bool TrainLoop::must_finish_now() const {
  return trainer_.device().is_cpu() || trainer_.must_wait_for_result() ||
         state().iteration >= trainer_.train_iters() ||
         std::ranges::any_of(intervals_, [](const Interval& interval) { return interval.is_due(); });
}

void TrainLoop::finish_step(PendingStep step) {
  const StepResult result = trainer_.finish_step(std::move(step));
  stop_.agree(result.stop_request);
  StepMetrics metrics = result.metrics;
  log_.step(metrics);
  if (observer_ && !stop_.has_observer_stopped() && !observer_(metrics)) stop_.observer_stopped();
  saves_.advance();
}

void TrainLoop::train() {
  profiler_ = make_profiler(trainer_);
  saves_.open_progress(start_time_);
  log_.open();
  if (args().skip_train) {
    if (is_first_rank()) print("skipping training (--skip-train is on) ...");
    return;
  }
  if (state().iteration >= trainer_.train_iters()) return;
  if (args().generate_interval) sampler_ = make_sampler_(trainer_);
  intervals_ = make_intervals();
  const std::unique_ptr<BatchSource> source = trainer_.open(Split::train);
  if (is_first_rank()) {
    print("training ...");
    print_line(datetime_line("before the start of training step", wall_clock()));
  }
  run_steps(*source);
  log_.interval();
  if (is_first_rank() && stop_.reason() != StopPolicy::Reason::signal) {
    print_line(datetime_line("after training is done", wall_clock()));
  }
}

void TrainLoop::run_steps(BatchSource& source) {
  using Clock = std::chrono::steady_clock;
  const MicroBatches microbatches = trainer_.batches_from(source);
  std::optional<PendingStep> pending;
  Clock::time_point last = Clock::now();
  while (state().iteration < trainer_.train_iters() && !stop_.stops()) {
    if (trainer_.skips_next_step()) {
      if (pending) {
        finish_step(*std::exchange(pending, std::nullopt));  // it may ask to stop
        continue;
      }
      trainer_.skip_step(microbatches);
      run_intervals();
      last = Clock::now();
      continue;
    }
    if (profiler_) profiler_->before_step(state().iteration);
    PendingStep step = trainer_.launch_step(microbatches, stop_.request());
    if (pending) finish_step(*std::exchange(pending, std::nullopt));
    const Clock::time_point now = Clock::now();
    step.metrics.seconds = std::chrono::duration<double>(now - last).count();
    stop_.step_took(step.metrics.seconds);
    last = now;
    pending = std::move(step);
    if (profiler_) profiler_->after_step(state().iteration);
    log_.memory();
    if (!must_finish_now()) continue;
    finish_step(*std::exchange(pending, std::nullopt));
    if (run_intervals()) last = Clock::now();
  }
  if (pending) finish_step(*std::move(pending));
}

ExitCode TrainLoop::finish() {
  // Saved before anything else can fail, but logged where Megatron-LM logs it.
  std::optional<SaveMetrics> saved;
  unhurried(save_work(), [&] {
    saves_.finish();
    if (trainer_.new_steps() > 0) saved = saves_.save_last();
  })();
  unhurried(StopSignals::Work::open_ended, [&] { trainer_.hf_output().write(trainer_.train_iters()); })();
  if (!stop_.stops()) evaluator_.evaluate(Split::valid, "the end of training for val data");
  if (saved) saves_.log(*saved);
  if (!stop_.stops()) evaluator_.evaluate(Split::test, "the end of training for test data");
  log_.end_progress();
  stop_.conclude();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  log_.end({.iteration = state().iteration, .reason = stop_.name(), .seconds = seconds.count()});
  return stop_.is_to_be_restarted() ? ExitCode::stopped : ExitCode::ok;
}

}  // namespace teratron
