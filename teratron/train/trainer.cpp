#include "teratron/train/trainer.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/device/device.h"
#include "teratron/plan/flops.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/train/checkpoint/start.h"
#include "teratron/train/engine/engine_options.h"
#include "teratron/train/engine/eval_logits.h"
#include "teratron/train/setup_lines.h"

namespace teratron {

namespace {

std::unique_ptr<Timers> make_timers(const Arguments& args, at::Device device) {
  const auto level = static_cast<int>(args.timing_log_level);
  if (device.is_cpu() || level == 0) return std::make_unique<Timers>(level);
  return std::make_unique<Timers>(level, [device] {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeDevice(device.index());
  });
}

std::unique_ptr<TrainStep> make_step(const Registry& registry, const Registry::Context& context) {
  return registry.train_step ? registry.train_step(context) : std::make_unique<ModelLosses>();
}

// The first rank of a node locks its folder of --save, the first of all --run-dir too.
std::vector<std::unique_ptr<JobLock>> lock_directories(const Arguments& args, bool is_first) {
  std::vector<std::unique_ptr<JobLock>> locks;
  if (args.save) locks.push_back(std::make_unique<JobLock>(*args.save, JobLockOptions{}));
  if (!args.run_dir || !is_first) return locks;
  make_directories(*args.run_dir, ExitCode::config);
  std::error_code ignored;
  if (args.save && std::filesystem::equivalent(*args.run_dir, *args.save, ignored)) return locks;
  locks.push_back(std::make_unique<JobLock>(*args.run_dir, JobLockOptions{}));
  return locks;
}

ScheduleLoadRule schedule_rule(const Arguments& args) {
  if (args.override_opt_param_scheduler || args.skip_train) return ScheduleLoadRule::keep_flags;
  if (args.use_checkpoint_opt_param_scheduler) return ScheduleLoadRule::use_checkpoint;
  return ScheduleLoadRule::must_match;
}

void check_logits(const Arguments& args, const ModelPlan& plan, const Registry& registry, bool first_rank) {
  if (!args.return_logits) return;
  if (plan.inference.of_texts)
    throw config_error({.what = "the model has outputs of whole texts, not logits of tokens",
                        .where = "--return-logits",
                        .fix = "Leave it out"});
  if (first_rank && !args.logits_out && !registry.train_step)
    notice(
        "--return-logits has no effect: nothing uses the logits without --logits-out or a program's train "
        "step");
}

}  // namespace

Trainer::Trainer(const Arguments& args, const Mesh& mesh, const JobModel& model)
    : mesh_(mesh),
      device_(choose_device(args)),
      tokenizer_(build_tokenizer(tokenizer_options(args))),
      family_(model.family),
      own_run_(require_own_run({args, family_, *tokenizer_}, *mesh_.world().communicator)),
      args_(with_log_lines(with_epochs({args, *tokenizer_, mesh_}, family_, epoch_))),
      decoupled_(decoupled_group(args_)),
      step_(make_step(model.registry, {args_, *tokenizer_, mesh_})),
      finetuning_(model.family.finetunes),
      timers_(make_timers(args_, device_)),
      state_{.scheduler = lr_scheduler(args_), .scaler = loss_scaler(args_)},
      batches_(batch_schedule(args_)),
      train_iters_(planned_iters()) {
  if (device_.is_cuda()) check_fp8_on(args_, device_name(device_), compute_capability(device_));
  check_graphs_on(args_, device_);
  if (device_.is_cuda()) check_expert_graphs_on(args_, device_name(device_), compute_capability(device_));
  if (args_.deterministic_mode) at::globalContext().setDeterministicAlgorithms(true, false);
  const ModelPlan plan = family_.plan(args_, tokenizer_->vocab_size());
  check_logits(args_, plan, model.registry, is_first_rank());
  if (is_first_rank()) print_setup(args_, batches_, train_iters_, plan);
  const auto folders = find_folders();
  if (folders->leads(mesh_.rank())) locks_ = lock_directories(args_, is_first_rank());
  if (is_first_rank()) print_building_model(family_);
  {
    const auto timed = timers_->scope("model-and-optimizer-setup");
    EngineOptions options = engine_options(args_, plan, device_);
    options.step = step_.get();
    options.return_logits = args_.return_logits && (args_.logits_out || model.registry.train_step);
    options.param_group = model.registry.param_group;
    options.timers = timers_.get();
    removes_padding_ = packs_rows(args_, options);
    engine_ = std::make_unique<TrainEngine>(options, mesh_);
  }
  state_.param_groups = engine_->param_groups();
  nan_policy_.emplace(args_, *engine_);
  std::string config = checkpoint_config(args_, family_, engine_->options());
  if (args_.save && is_first_rank()) config = with_identity(config, args_, own_run_ && own_run_->finetunes);
  checkpointed_.emplace(args_, *engine_, state_, family_, std::move(config), folders);
  saver_.emplace(*checkpointed_);
  hf_output_.emplace(*checkpointed_, *saver_);
  if (args_.remove_padding == "always" && !removes_padding_ && is_first_rank())
    notice("--remove-padding has no effect: the rows of this training have no padding");
  if (mesh_.replicas().rank == 0) {
    print_parameters(mesh_, engine_->parameters().numel());
    print(" > rank ({}, {}): {}", mesh_.group(Axis::tp).rank, mesh_.group(Axis::pp).rank,
          to_string(state_memory(*engine_)));
  }
  size_data();
  if (args_.num_train_epochs && !args_.skip_train && is_first_rank())
    print_epochs(args_, epoch_, train_iters_);
}

// The folders behind --save. Where rank 0's node has no checkpoint of the run, others must have none.
std::shared_ptr<const NodeFolders> Trainer::find_folders() const {
  auto folders = std::make_shared<NodeFolders>();
  if (!args_.save) return folders;
  HostGroup& ranks = *mesh_.world().communicator;
  *folders = check_save_directory(*args_.save, ranks);
  if (folders->is_shared()) return folders;
  if (is_first_rank()) notice_line(describe(*folders));
  const bool evaluates = args_.skip_train && args_.load;
  if (!own_run_ && !args_.fresh && !evaluates) require_no_checkpoints(*args_.save, ranks);
  return folders;
}

void Trainer::size_data() {
  const TrainProgress progress{.train_iters = train_iters_,
                               .iteration = state_.iteration,
                               .consumed_train_samples = state_.consumed_train_samples,
                               .consumed_valid_samples = state_.consumed_valid_samples};
  const TrainData::Source source{split_samples(args_, progress), model().batch, device_, epoch_.data};
  if (data_ && data_->samples() == source.samples) return;
  const auto timed = timers_->scope("train/valid/test-data-iterators-setup");
  if (is_first_rank()) print_building_data(family_);
  data_ = std::make_unique<TrainData>(Registry::Context{args_, *tokenizer_, mesh_}, family_, source);
  if (is_first_rank()) print_finished_data(family_);
}

// A length in samples or epochs ends after the same samples if the batch size changed on the way.
int64_t Trainer::planned_iters() const {
  std::optional<int64_t> samples = args_.train_samples;
  if (args_.num_train_epochs && epoch_.steps == 0.0)
    samples = args_.train_iters.value() * args_.global_batch_size.value();
  if (!samples) return args_.train_iters.value_or(0);
  return state_.iteration + batches_.iterations_for(*samples, state_.consumed_train_samples);
}

bool Trainer::load() {
  const Start start = load_start(*checkpointed_, finetuning_, own_run_);
  resumed_folder_ = start.folder;
  if (!start.resumed) return start.has_weights;
  resume(*start.resumed);
  if (own_run_) saver_->note_resumed();
  print_resume_notices(*checkpointed_, *start.resumed);
  return true;
}

void Trainer::resume(const CheckpointInfo& checkpoint) {
  state_.load(checkpoint.state, schedule_rule(args_));
  engine_->set_param_group_rules(state_.param_groups.rules);
  loaded_iteration_ = state_.iteration;
  train_iters_ = planned_iters();
  size_data();
  if (args_.no_load_optim) state_.optimizer_steps = 0;
  engine_->optimizer().set_steps(state_.optimizer_steps);
}

std::unique_ptr<BatchSource> Trainer::open(Split split) const {
  if (split == Split::train && args_.step_batch_size_schedule)
    batches_.require_divisible(state_.consumed_train_samples);
  return data_->open(split, consumed_samples(split));
}

int64_t Trainer::consumed_samples(Split split) const {
  if (split == Split::train) return state_.consumed_train_samples;
  return split == Split::valid ? state_.consumed_valid_samples : 0;
}

std::unique_ptr<BatchSource> Trainer::open(Split split, BatchReader reader) const {
  return data_->open(split, consumed_samples(split), std::move(reader));
}

BatchReader Trainer::read(Split split) const {
  return data_->read(split, consumed_samples(split));
}

StepMetrics Trainer::next_step_metrics(const BatchSize& batch) const {
  const BatchShape shape{batch.running, args_.seq_length.value()};
  const Weights weights = engine_->options().lora ? Weights::frozen : Weights::trained;
  return {.iteration = state_.iteration + 1,
          .consumed_samples = state_.consumed_train_samples + batch.running,
          .skipped_samples = state_.skipped_train_samples,
          .global_batch_size = batch.running,
          .tokens = batch.running * tokens_per_sample(args_),
          .flops = training_flops(model(), shape, FlopsConvention::causal, weights),
          .flops_full = training_flops(model(), shape, FlopsConvention::full, weights)};
}

void Trainer::add_learning_rates(StepMetrics& metrics) const {
  metrics.learning_rate = state_.scheduler.lr();
  if (decoupled_) metrics.decoupled_learning_rate = state_.scheduler.lr(*decoupled_);
}

StepInputs Trainer::next_step_inputs() const {
  Optimizer::Hyperparameters hyper{.lr = state_.scheduler.lr(),
                                   .weight_decay = state_.scheduler.wd(),
                                   .loss_scale = state_.scaler.scale()};
  if (decoupled_) hyper.decoupled_lr = state_.scheduler.lr(*decoupled_);
  return {.microbatches = batch_size().microbatches, .hyper = hyper};
}

StepGradients Trainer::compute_gradients(const MicroBatches& microbatches) {
  set_fault_context(mesh_.rank(), state_.iteration + 1);
  saver_->reserve_memory();
  return engine_->gradients(microbatches, next_step_inputs());
}

PendingStep Trainer::launch_update(StepGradients gradients, int64_t stop_request) {
  const BatchSize batch = batch_size();
  StepMetrics metrics = next_step_metrics(batch);
  StepInputs inputs = next_step_inputs();
  inputs.stop_request = stop_request;
  saver_->prepare_step(inputs);
  PendingStep step = engine_->update(std::move(gradients), inputs);
  state_.iteration = metrics.iteration;
  state_.consumed_train_samples = metrics.consumed_samples;
  state_.floating_point_operations += metrics.flops;
  if (!must_wait_for_result()) state_.scheduler.step(batch.running);
  add_learning_rates(metrics);  // those of the next step, as in Megatron-LM's log
  step.metrics = std::move(metrics);
  return step;
}

bool Trainer::skips_next_step() const {
  const std::vector<int64_t>& skipped = args_.iterations_to_skip;
  return std::find(skipped.begin(), skipped.end(), state_.iteration) != skipped.end();
}

StepMetrics Trainer::skip_step(const MicroBatches& microbatches) {
  const BatchSize batch = batch_size();
  for (int64_t i = 0; i < batch.microbatches; ++i) microbatches(i);
  state_.skipped_train_samples += batch.running;
  StepMetrics metrics = next_step_metrics(batch);
  state_.iteration = metrics.iteration;
  state_.consumed_train_samples = metrics.consumed_samples;
  metrics.flops = metrics.flops_full = 0.0;
  metrics.skipped = true;
  add_learning_rates(metrics);
  return metrics;
}

StepResult Trainer::finish_step(PendingStep step) {
  StepResult result = step.wait();
  saver_->note_step(result);
  const auto graphs = engine_->finish(result);
  if (graphs && is_first_rank()) notice("{}", *graphs);
  StepMetrics& metrics = result.metrics;
  metrics.skipped = nan_policy_->was_skipped(result, step, [this] {
    try {
      saver_->finish();  // an earlier, sound state
    } catch (const std::exception& error) {
      warn("the checkpoint that was being saved is lost: {}", error.what());
    }
  });
  if (must_wait_for_result()) {
    if (!metrics.skipped) state_.scheduler.step(metrics.global_batch_size);
    add_learning_rates(metrics);
  }
  if (!metrics.skipped) {
    state_.optimizer_steps += 1;
    metrics.grad_norm = result.grad_norm;
  }
  state_.scaler.update(metrics.skipped);
  metrics.loss_scale = state_.scaler.scale();
  metrics.losses = named_losses(result);
  metrics.device_seconds = result.seconds;
  if (model().layer_sums.read) {
    for (const LayerMetrics::Row& row : model().layer_sums.read(result.layer_sums).rows)
      metrics.layers.push_back({row.name, row.layer, row.values});
  }
  if (args_.log_num_zeros_in_grad) metrics.num_zeros = result.num_zeros;
  if (args_.log_params_norm) metrics.params_norm = result.parameter_norm;
  return result;
}

Losses Trainer::losses_of(const StepResult& result) const {
  Losses losses;
  for (size_t i = 0; i < model().losses.size(); ++i)
    losses.emplace_back(model().losses[i], result.losses.at(i));
  return losses;
}

Losses Trainer::metrics_of(const StepResult& result) const {
  Losses metrics;
  const std::vector<std::string> names = step_->metric_names();
  for (size_t i = 0; i < names.size(); ++i) metrics.emplace_back(names[i], result.custom_metrics.at(i));
  return metrics;
}

Losses Trainer::named_losses(const StepResult& result) const {
  Losses all = losses_of(result);
  for (auto& metric : metrics_of(result)) all.push_back(std::move(metric));
  const LayerSums& sums = model().layer_sums;
  if (!sums.read) return all;
  for (auto& loss : sums.read(result.layer_sums).losses) all.push_back(std::move(loss));
  return all;
}

StepResult Trainer::train_step(const MicroBatches& microbatches) {
  if (skips_next_step()) return {.metrics = skip_step(microbatches)};
  StepResult result = finish_step(launch_step(microbatches));
  saver_->advance();
  return result;
}

MicroBatches Trainer::batches_from(BatchSource& source) const {
  return [this, &source](int64_t) {
    const auto timed = timers_->scope("batch-generator", 2);
    const bool removes = removes_padding_ && !engine_->fixes_shapes();
    return step_->get_batch(source, removes ? Padding::removed : Padding::kept);
  };
}

StepResult Trainer::train_step(BatchSource& source) {
  return train_step(batches_from(source));
}

StepResult Trainer::eval_step(BatchSource& source, int64_t steps) {
  return engine_->evaluate(batches_from(source), steps * eval_batch_size().microbatches);
}

std::optional<StepResult> Trainer::evaluate(Split split, const NextPart& next_part) {
  const std::unique_ptr<BatchSource> source = open(split);
  const int64_t count = args_.eval_iters * eval_batch_size().microbatches;
  return evaluate(split, *source, std::vector(mesh_.data_parallel().size, count), next_part);
}

std::optional<StepResult> Trainer::evaluate_whole_valid(const NextPart& next_part) {
  const std::unique_ptr<BatchSource> source = data_->open_whole_valid();
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < mesh_.data_parallel().size; ++rank)
    counts.push_back(data_->whole_valid_microbatches(rank));
  return evaluate(Split::valid, *source, counts, next_part);
}

std::optional<StepResult> Trainer::evaluate(Split split, BatchSource& source,
                                            const std::vector<int64_t>& micro_batches,
                                            const NextPart& next_part) {
  std::optional<EvalLogits> logits;
  if (args_.logits_out) {
    const char* const name = split == Split::test ? "test" : "validation";
    logits.emplace(EvalLogits::Options{.folder = *args_.logits_out,
                                       .name = fmt::format("{}-{:07d}", name, state_.iteration),
                                       .micro_batches = micro_batches,
                                       .gathers = args_.gather_logits},
                   mesh_);
    engine_->on_logits([&logits](const at::Tensor& values, const MicroBatch& batch, bool counts) {
      logits->add(values, batch, counts);
    });
  }
  const auto mine = static_cast<size_t>(mesh_.data_parallel().rank);
  const EvaluationSize size{.mine = micro_batches.at(mine), .most = micro_batches.at(0)};
  const std::optional<StepResult> result = engine_->evaluate(batches_from(source), size, next_part);
  engine_->on_logits(nullptr);
  if (logits && result) logits->finish();
  return result;
}

at::Tensor Trainer::average(const at::Tensor& tensor) const {
  const Group& group = mesh_.replicas();
  at::Tensor mean = tensor.detach().clone().contiguous();
  group.communicator->all_reduce(mean, ReduceOp::sum).wait();
  return mean.div_(static_cast<double>(group.size));
}

at::Tensor Trainer::gather(const at::Tensor& tensor) const {
  const Group& group = mesh_.data_parallel();
  const at::Tensor mine = tensor.detach().contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.at(0) *= group.size;
  const at::Tensor all = at::empty(shape, mine.options());
  group.communicator->all_gather(all, mine).wait();
  return all;
}

}  // namespace teratron
