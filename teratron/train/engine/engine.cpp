#include "teratron/train/engine/engine.h"

#include <map>
#include <ranges>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/device/device.h"
#include "teratron/models/lora.h"
#include "teratron/pipeline/executor.h"
#include "teratron/train/engine/loss_counts.h"
#include "teratron/train/engine/returned_losses.h"
#include "teratron/train/graphs/graph_choice.h"
#include "teratron/train/graphs/microbatch_graphs.h"

namespace teratron {

static bool is_finite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return at::isfinite(tensor).all().item<bool>();
}

TrainEngine::TrainEngine(const EngineOptions& options, const Mesh& mesh)
    : options_(options),
      step_(options.step ? *options.step : default_step_),
      mesh_(mesh),
      parameters_({.dtype = options.precision.dtype,
                   .device = options.device,
                   .seed = options.seed,
                   .fp8 = options.precision.fp8,
                   .lora = options.lora}) {
  PipelineLayout& pipeline = options_.parallel.pipeline;
  if (pipeline.virtual_stages.empty()) pipeline = pipeline_layout({.layers = options.model.layers()});
  if (options.per_token_loss) check_per_token_loss(options.model);
  const Group& stages = mesh.group(Axis::pp);
  TERATRON_ASSERT(pipeline.stages == stages.size);
  TensorParallel parallel{mesh.group(Axis::tp), options.parallel.sequence_parallel};
  if (!options.parallel.overlap_tensor_parallel) {
    parallel.group.communicator = synchronous_communicator(parallel.group.communicator);
  }
  std::vector<int64_t> sizes;
  for (const StageSpec& spec : pipeline.chunks_of_stage(stages.rank)) {
    const auto before = static_cast<int64_t>(parameters_.all().size());
    chunks_.push_back(options.model.build({parameters_, spec, parallel, mesh}));
    sizes.push_back(static_cast<int64_t>(parameters_.all().size()) - before);
  }
  if (options.lora) freeze_base(parameters_);
  param_groups_ =
      std::make_unique<ParamGroups>(parameters_, mesh, options.param_group, options.param_group_rules);
  if (options.per_token_loss) options_.reduction.average_in_collective = false;
  buffers_ =
      std::make_unique<ParamAndGradBuffers>(parameters_, mesh, options_.reduction, sizes, options.rules);
  optimizer_ = std::make_unique<Optimizer>(*buffers_, mesh, options.optimizer);
  connect_links(mesh, at::TensorOptions().dtype(options.precision.dtype).device(options.device));
  if (options.graphs_after > 0) set_up_graphs(options);
}

void TrainEngine::set_up_graphs(const EngineOptions& options) {
  for (const Axis axis : {Axis::pp, Axis::tp, Axis::cp, Axis::ep, Axis::etp})
    TERATRON_ASSERT(mesh_.group(axis).size == 1, "communication is not captured");
  if (!options.graphs_where_host_bound) {
    graphs_ = std::make_unique<MicrobatchGraphs>(parameters_,
                                                 MicrobatchGraphs::Options{.warm_up = options.graphs_after});
    return;
  }
  if (!step_.never_waits() || !chunks_.front()->never_waits()) return;
  graphs_ = std::make_unique<MicrobatchGraphs>(parameters_,
                                               MicrobatchGraphs::Options{.warm_up = 0, .falls_back = true});
  graph_choice_ = std::make_unique<GraphChoice>(options.graphs_after);
}

TrainEngine::~TrainEngine() = default;

void TrainEngine::set_param_group_rules(std::vector<ParamGroupRule> rules) {
  param_groups_->set_rules(std::move(rules));
  optimizer_->update_groups();
}

at::Tensor TrainEngine::loss(Model& chunk, const Activations& output, const MicroBatch& batch,
                             DeviceScalars& scalars) {
  const StepLoss result = step_.forward_step(chunk, output, batch);
  const DeviceScalars::Sizes& sizes = scalars.sizes();
  check_returned(result, {sizes.losses, sizes.custom_metrics});
  const Group& context_parallel = mesh_.group(Axis::cp);
  at::Tensor total;
  for (size_t i = 0; i < result.losses.size(); ++i) {
    const auto& [sum, count] = result.losses[i];
    const auto slot = DeviceScalars::loss + 2 * static_cast<int64_t>(i);
    scalars[slot].add_(sum.detach());
    scalars[slot + 1].add_(count.detach());
    at::Tensor term = sum;
    if (!options_.per_token_loss) {
      const at::Tensor tokens = reduce_from(count.detach(), context_parallel).clamp_min(1.0);
      // Gradients are averaged over the context-parallel ranks, but each has a part of the tokens.
      term = context_parallel.size == 1 ? sum / tokens
                                        : sum / tokens * static_cast<double>(context_parallel.size);
    }
    total = total.defined() ? total + term : term;
  }
  int64_t slot = scalars.first_metric();
  for (const at::Tensor& metric : result.metrics) scalars[slot++].add_(metric.detach());
  return total;
}

at::Tensor TrainEngine::logits(Model& chunk, const Activations& output, const MicroBatch& batch) {
  const at::Tensor all = gather_from(chunk.logits(output), 2, mesh_.group(Axis::tp));
  const at::Tensor logits = all.narrow(2, 0, options_.model.vocabulary);
  const PackedRows packed = packed_rows(batch);
  return packed.defined() ? with_padding(logits, packed) : logits;
}

void TrainEngine::return_logits(Model& chunk, const Activations& output, const MicroBatch& batch,
                                bool counts) {
  const at::Tensor logits_SBV = logits(chunk, output, batch);
  if (counts) step_.on_logits(logits_SBV, batch);
  if (logits_hook_) logits_hook_(logits_SBV, batch, counts);
}

DeviceScalars TrainEngine::zero_scalars() const {
  return DeviceScalars(options_.device, {.losses = static_cast<int64_t>(options_.model.losses.size()),
                                         .custom_metrics = static_cast<int64_t>(step_.metric_names().size()),
                                         .layer_sums = options_.model.layer_sums.count});
}

std::vector<const Channel*> TrainEngine::channels_at(int64_t layer) const {
  std::vector<const Channel*> channels;
  for (const Channel& channel : options_.model.channels) {
    if (!channel.crosses || channel.crosses(layer)) channels.push_back(&channel);
  }
  return channels;
}

ChunkMessages TrainEngine::messages(const StageSpec& stage, const MicroBatch& batch) const {
  const int64_t shards = options_.parallel.sequence_parallel ? mesh_.group(Axis::tp).size : 1;
  const auto shapes_at = [&](int64_t layer) {
    std::vector<MessageShape> shapes;
    for (const Channel* channel : channels_at(layer)) {
      const at::ScalarType dtype = channel->dtype.value_or(options_.precision.dtype);
      shapes.push_back({.sizes = channel->shape(batch, shards),
                        .options = at::TensorOptions().dtype(dtype).device(options_.device),
                        .differentiable = channel->differentiable});
    }
    return shapes;
  };
  ChunkMessages messages;
  if (!stage.embedding) messages.in = shapes_at(stage.first_layer);
  if (!stage.head) messages.out = shapes_at(stage.first_layer + stage.layers);
  return messages;
}

bool TrainEngine::fixes_shapes() const {
  return graphs_ && !graphs_->fell_back() && (!graph_choice_ || graph_choice_->replays());
}

void TrainEngine::run_schedule_into(DeviceScalars& scalars, MicroBatchBuffer& batches,
                                    const ForwardBackwardArgs& args) {
  const auto last_chunk = static_cast<int64_t>(chunks_.size()) - 1;
  DeviceScalars unused = args.own < args.microbatches ? zero_scalars() : scalars;
  // Gradients are averaged over the context-parallel ranks, of which each has a part of a loss.
  const auto parts = static_cast<double>(options_.per_token_loss ? 1 : mesh_.group(Axis::cp).size);
  const auto& [scale, counts] = args.factors;
  batches.set_auxiliary({scale.defined() && parts > 1.0 ? scale * parts : scale, options_.per_token_loss,
                         counts, scalars.layer_sums()});
  const auto forward = [&](const Action& action,
                           const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    Model& chunk = *chunks_[action.chunk];
    const StageSpec& stage = chunk.stage();
    const MicroBatch& batch = batches.at(action.microbatch);
    const auto timed = Timers::scope(args.captured ? nullptr : options_.timers, "forward-compute", 2);
    Activations input;
    const std::vector<const Channel*> in = channels_at(stage.first_layer);
    for (size_t i = 0; i < inputs.size(); ++i) input.set(in[i]->name, inputs[i]);
    const Activations output = chunk.forward(input, batch, nullptr);
    std::vector<at::Tensor> outputs;
    if (!stage.head) {
      for (const Channel* channel : channels_at(stage.first_layer + stage.layers)) {
        TERATRON_ASSERT(output[channel->name].defined(), "a stage returned no channel {}", channel->name);
        outputs.push_back(output[channel->name]);
      }
    } else if (args.logits) {
      outputs.push_back(*args.logits = logits(chunk, output, batch));
    } else {
      const bool counts = action.microbatch < args.own;
      const at::Tensor total = loss(chunk, output, batch, counts ? scalars : unused);
      if (args.return_logits) return_logits(chunk, output, batch, counts);
      outputs.push_back(args.factors.scale.defined() ? total * args.factors.scale : total);
    }
    if (action.chunk == last_chunk) batches.drop(action.microbatch);
    return outputs;
  };
  const auto before_backward = [&](const Action& action) {
    if (args.reduces && action.microbatch == args.microbatches - 1)
      buffers_->set_last_microbatch(action.chunk);
  };
  std::map<std::pair<int64_t, int64_t>, ChunkMessages>
      shapes;  // micro-batches are gone before their backward
  const auto messages_of = [&](const Action& action) {
    const auto [found, is_new] = shapes.try_emplace({action.chunk, action.microbatch});
    if (is_new) found->second = messages(chunks_[action.chunk]->stage(), batches.at(action.microbatch));
    return found->second;
  };
  const ParallelOptions& parallel = options_.parallel;
  const Actions actions = schedule(mesh_.group(Axis::pp).rank, {.stages = parallel.pipeline.stages,
                                                                .chunks = parallel.pipeline.chunks,
                                                                .microbatches = args.microbatches,
                                                                .microbatch_group = parallel.microbatch_group,
                                                                .forward_only = !args.training,
                                                                .early_receives = parallel.overlap_p2p});
  run_schedule(actions, mesh_.pipeline_links(), {forward, before_backward, messages_of});
}

// The last stage has the losses.
void TrainEngine::sum_over_ranks(DeviceScalars& scalars) const {
  const Group& group = mesh_.group(replica_axes | Axis::pp);
  if (group.size > 1) group.communicator->all_reduce(scalars.sums(), ReduceOp::sum).wait();
}

// In f64, so that the product is rounded once, to the loss's type. A tensor, since graphs freeze host
// numbers.
at::Tensor TrainEngine::loss_scale(const StepInputs& inputs) const {
  const bool averages = options_.reduction.average_in_collective;
  const double ranks = averages ? 1.0 : static_cast<double>(mesh_.replicas().size);
  const double share = 1.0 / ranks / static_cast<double>(inputs.microbatches);
  const double scale = inputs.hyper.loss_scale * (options_.per_token_loss ? 1.0 : share);
  return at::full({}, scale, at::TensorOptions().dtype(at::kDouble).device(options_.device));
}

TrainEngine::LossFactors TrainEngine::loss_factors(MicroBatchBuffer& batches,
                                                   const StepInputs& inputs) const {
  LossFactors factors{loss_scale(inputs), {}};
  if (options_.per_token_loss && chunks_.back()->stage().head)
    factors.counts = step_loss_counts(options_.model, batches, inputs.microbatches, mesh_.replicas());
  return factors;
}

DeviceScalars TrainEngine::forward_backward(MicroBatchBuffer& batches, const StepInputs& inputs) {
  const auto timed = Timers::scope(options_.timers, "forward-backward", 1);
  const bool chosen = graphs_ && (!graph_choice_ || graph_choice_->replays());
  if (chosen && graphs_->begin_step()) return replay_graphs(batches, inputs);
  if (graphs_) graphs_->runs_eagerly(batches.at(0));
  DeviceScalars scalars = zero_scalars();
  run_schedule_into(scalars, batches,
                    {.microbatches = inputs.microbatches, .factors = loss_factors(batches, inputs)});
  return scalars;
}

// Every micro-batch runs its own schedule.
DeviceScalars TrainEngine::replay_graphs(MicroBatchBuffer& batches, const StepInputs& inputs) {
  buffers_->finish_param_gather();
  const LossFactors factors = loss_factors(batches, inputs);
  if (!graph_state_) graph_state_ = {zero_scalars(), factors};
  graph_state_->factors.scale.copy_(factors.scale);
  if (factors.counts.defined()) graph_state_->factors.counts.copy_(factors.counts);
  graph_state_->scalars.values().zero_();
  const auto body = [this](const MicroBatch& batch) {
    MicroBatchBuffer one([&batch](int64_t) { return batch; }, /*training=*/true);
    run_schedule_into(graph_state_->scalars, one,
                      {.factors = graph_state_->factors, .reduces = false, .captured = true});
  };
  for (int64_t i = 0; i < inputs.microbatches; ++i) {
    graphs_->run(batches.at(i), i, body);
    batches.drop(i);
  }
  return graph_state_->scalars;
}

StepGradients TrainEngine::gradients(const MicroBatches& microbatches, const StepInputs& inputs) {
  std::vector<MicroBatch> saved;
  MicroBatchBuffer batches(microbatches, /*training=*/true, options_.save_batches ? &saved : nullptr);
  buffers_->zero_grad();
  StepGradients result{.scalars = forward_backward(batches, inputs)};
  result.batches = std::move(saved);
  if (graph_choice_ && graph_choice_->watches()) result.end.record(options_.device);
  const auto timed = Timers::scope(options_.timers, "all-grads-sync", 1);
  buffers_->finish_grad_sync();
  return result;
}

PendingStep TrainEngine::update(StepGradients gradients, const StepInputs& inputs) {
  DeviceScalars& scalars = gradients.scalars;
  sum_over_ranks(scalars);
  Optimizer::Hyperparameters hyper = inputs.hyper;
  hyper.loss = scalars.total_loss();
  if (options_.per_token_loss) hyper.num_tokens = scalars[DeviceScalars::tokens].clamp_min(1.0);
  const auto timed = Timers::scope(options_.timers, "optimizer", 1);
  if (inputs.before_update) inputs.before_update();
  const GradStats stats = optimizer_->step(hyper);
  parameters_.end_step(mesh_);
  const int64_t graph_vote = graph_choice_ ? vote(gradients) : 0;
  if (graph_vote != 0) scalars[DeviceScalars::graph_vote].fill_(static_cast<double>(graph_vote));
  add_stats(scalars, stats, inputs);
  PendingStep step(scalars, last_end_);
  last_end_ = step.end();
  step.inputs = inputs;
  step.inputs.before_update = nullptr;
  step.batches = std::move(gradients.batches);
  return step;
}

void TrainEngine::add_stats(DeviceScalars& scalars, const GradStats& stats, const StepInputs& inputs) const {
  const auto set = [&scalars](DeviceScalars::Slot slot, const at::Tensor& value) {
    if (value.defined()) scalars[slot].copy_(value);
  };
  set(DeviceScalars::grad_norm, stats.grad_norm);
  set(DeviceScalars::found_inf, stats.found_inf);
  set(DeviceScalars::num_zeros, stats.num_zeros);
  if (options_.report_parameter_norm) set(DeviceScalars::parameter_norm, optimizer_->parameter_norm());
  scalars[DeviceScalars::stop_request].fill_(static_cast<double>(inputs.stop_request));
  scalars[DeviceScalars::negative_progress].fill_(static_cast<double>(-inputs.progress));
  const Group& world = mesh_.world();
  if (world.size > 1) world.communicator->all_reduce(scalars.maxima(), ReduceOp::max).wait();
}

int64_t TrainEngine::vote(const StepGradients& gradients) {
  GraphChoice::Observation seen;
  if (graph_choice_->watches()) {
    seen = {.gpu_waited = gradients.end.reached(), .has_memory = has_memory_for_graphs(options_.device)};
  }
  return static_cast<int64_t>(graph_choice_->launch(seen));
}

std::optional<std::string> TrainEngine::finish(const StepResult& result) {
  if (!graph_choice_) return std::nullopt;
  const auto outcome =
      graph_choice_->finish(static_cast<GraphChoice::Vote>(result.graph_vote), result.seconds);
  if (!outcome) return std::nullopt;
  if (outcome->kind != GraphChoice::Outcome::Kind::kept) {
    graphs_.reset();
    graph_state_.reset();
  }
  return to_string(*outcome);
}

StepResult TrainEngine::evaluate(const MicroBatches& microbatches, int64_t count) {
  return evaluate(microbatches, {count, count}, [](int64_t, int64_t most) { return most; }).value();
}

std::optional<StepResult> TrainEngine::evaluate(const MicroBatches& microbatches, const EvaluationSize& size,
                                                const NextPart& next_part) {
  const at::NoGradGuard no_grad;
  DeviceScalars scalars = zero_scalars();
  MicroBatch last;
  for (int64_t done = 0; done < size.most;) {
    const int64_t part = std::min(next_part(done, size.most), size.most - done);
    if (part == 0) return std::nullopt;
    const auto own_or_last = [&](int64_t i) {
      return done + i < size.mine ? last = microbatches(done + i) : last;
    };
    MicroBatchBuffer batches(own_or_last, /*training=*/false);
    run_schedule_into(scalars, batches,
                      {.microbatches = part,
                       .training = false,
                       .own = size.mine - done,
                       .return_logits = options_.return_logits});
    done += part;
  }
  sum_over_ranks(scalars);
  return PendingStep(scalars).wait();
}

std::optional<TrainEngine::NonFinite> TrainEngine::find_nonfinite(const PendingStep& step) {
  std::optional<NonFinite> found;
  int64_t outputs = 0;
  const auto look = [&](const std::string& part, const at::Tensor& output, const at::Tensor& sample_ids_B) {
    if (!found && !is_finite(output))
      found = {.part = part, .sample_ids_B = sample_ids_B, .position = outputs};
    ++outputs;
  };
  for (const auto& chunk : chunks_) chunk->set_activation_hook(look);
  buffers_->zero_grad();
  DeviceScalars scalars = zero_scalars();
  MicroBatchBuffer batches([&](int64_t i) { return step.batches.at(static_cast<size_t>(i)); }, true);
  const LossFactors factors = loss_factors(batches, step.inputs);
  run_schedule_into(scalars, batches,
                    {.microbatches = step.inputs.microbatches, .factors = factors, .reduces = false});
  for (const auto& chunk : chunks_) chunk->set_activation_hook(nullptr);
  if (!found && !is_finite(scalars.total_loss())) found = {.part = "the loss", .position = outputs};
  for (const Parameter& parameter : parameters_.all() | std::views::reverse) {  // in the order of backward
    if (found) break;
    if (parameter.options.trainable && !parameter.grad_is_stale && !is_finite(parameter.main_grad))
      found = {.part = parameter.name, .gradient = true};
  }
  return found;
}

at::Tensor TrainEngine::logits(const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  at::Tensor logits;
  DeviceScalars scalars = zero_scalars();
  MicroBatchBuffer batches([&](int64_t) { return batch; }, /*training=*/false);
  run_schedule_into(scalars, batches, {.training = false, .logits = &logits});
  return logits;
}

}  // namespace teratron
