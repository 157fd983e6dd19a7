// One rank's model, data and counters: what a training loop drives, the program's (loop/train_loop.h) or a
// custom one.
//
//   Trainer trainer(args, mesh, model);       // model, optimizer, schedules and data, from the settings
//   trainer.load();                           // goes on with the run in --save, or from --load
//   const auto source = trainer.open(Split::train);
//   while (trainer.state().iteration < 100) {
//     const StepResult step = trainer.train_step(*source);
//     if (trainer.is_last_rank()) print("{}", step.loss);
//   }
//   trainer.save();                           // to --save
//
// Everything but the getters is collective over the mesh: all ranks call it, in the same order. Errors are
// those of the layers below, thrown on every rank.
#pragma once

#include <memory>
#include <optional>

#include "teratron/optim/batch_schedule.h"
#include "teratron/settings/own_run.h"
#include "teratron/telemetry/timers.h"
#include "teratron/train/checkpoint/hf_output.h"
#include "teratron/train/data/train_data.h"
#include "teratron/train/guards/job_lock.h"
#include "teratron/train/guards/nan_policy.h"
#include "teratron/train/registry.h"

namespace teratron {

class Trainer {
 public:
  /// `args` are finished (finish_arguments()). Locks --save; rank 0 prints the configuration.
  Trainer(const Arguments& args, const Mesh& mesh, const JobModel& model);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Goes on with the run in --save, or resumes from --load, or starts from the weights of --hf or
  /// --pretrained-checkpoint (checkpoint/start.h). False: random weights.
  bool load();
  /// Goes on from the counters of a checkpoint whose tensors load_model() has read.
  void resume(const CheckpointInfo& checkpoint);
  /// The folder of the checkpoint that was resumed; "": none was.
  const std::string& resumed_folder() const { return resumed_folder_; }
  /// Saves to --save (checkpoint/checkpoint_saver.h). Under --async-save train_step() advances the save.
  std::optional<SaveMetrics> save() { return saver_->save(); }
  CheckpointSaver& saver() { return *saver_; }
  const CheckpointSaver& saver() const { return *saver_; }
  /// --hf-out and --lora-out.
  HfOutput& hf_output() { return *hf_output_; }

  // ---- Getters ----
  const Arguments& args() const { return args_; }
  const Mesh& mesh() const { return mesh_; }
  const TrainState& state() const { return state_; }
  TrainState& state() { return state_; }
  /// Steps since load().
  int64_t new_steps() const { return state_.iteration - loaded_iteration_; }
  const Family& family() const { return family_; }
  const ModelPlan& model() const { return engine_->options().model; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  TrainEngine& engine() { return *engine_; }
  const TrainEngine& engine() const { return *engine_; }
  Timers& timers() { return *timers_; }
  at::Device device() const { return device_; }
  /// Steps of the whole training.
  int64_t train_iters() const { return train_iters_; }
  const TrainEpoch& epoch() const { return epoch_; }
  /// The batch size of the next step.
  BatchSize batch_size() const { return batches_.at(state_.consumed_train_samples); }
  int64_t global_batch_size() const { return batch_size().running; }
  /// The batch size of evaluations: that after the last change.
  BatchSize eval_batch_size() const { return batches_.last(); }
  bool is_first_rank() const { return mesh_.rank() == 0; }
  /// The last rank logs: as part of the last pipeline stage it has the loss.
  bool is_last_rank() const { return mesh_.rank() == mesh_.world_size() - 1; }
  bool has(Split split) const { return data_->has(split); }

  // ---- Steps ----
  /// Micro-batches of this data-parallel rank; train and valid continue after the samples consumed so far.
  std::unique_ptr<BatchSource> open(Split split) const;
  /// Micro-batches of samples that the program reads (BatchSource).
  std::unique_ptr<BatchSource> open(Split split, BatchReader reader) const;
  /// What open() reads on this rank (TrainData::read()).
  BatchReader read(Split split) const;
  /// One step over global_batch_size() samples; advances the counters. A step in --iterations-to-skip only
  /// consumes its samples: its metrics are marked as skipped and have no losses.
  StepResult train_step(BatchSource& source);
  /// A step over custom micro-batches, batch_size().microbatches of them.
  StepResult train_step(const MicroBatches& microbatches);
  /// Mean losses over `steps` batches of eval_batch_size(), without training. Does not change the counters.
  StepResult eval_step(BatchSource& source, int64_t steps = 1);
  /// Mean losses over --eval-iters steps of a split, or over the whole validation split
  /// (TrainData::has_whole_valid()). Nothing if `next_part` ended it.
  std::optional<StepResult> evaluate(Split split, const NextPart& next_part);
  std::optional<StepResult> evaluate_whole_valid(const NextPart& next_part);
  bool has_whole_valid() const { return data_->has_whole_valid(); }
  /// Logits [S, B, vocabulary] of one micro-batch of this data-parallel rank, without dropout: on the last
  /// pipeline stage, undefined on the others.
  at::Tensor logits(const MicroBatch& batch) { return engine_->logits(batch); }
  /// The two halves of a step: the host may launch the next step before it finishes this one. The result has
  /// the maximum of all ranks' `stop_request`. Fault (numerics) where the NaN policy stops.
  PendingStep launch_step(const MicroBatches& microbatches, int64_t stop_request = 0) {
    return launch_update(compute_gradients(microbatches), stop_request);
  }
  /// The two halves of launch_step(): without the second nothing has changed.
  StepGradients compute_gradients(const MicroBatches& microbatches);
  PendingStep launch_update(StepGradients gradients, int64_t stop_request = 0);
  StepResult finish_step(PendingStep step);
  /// Whether the next step depends on the result of this one (loss scale, skipped steps).
  bool must_wait_for_result() const { return nan_policy_->must_wait_for_result(); }
  /// Whether --iterations-to-skip names the next step; and that step.
  bool skips_next_step() const;
  StepMetrics skip_step(const MicroBatches& microbatches);
  /// The model's losses by name, the train step's metrics, and both.
  Losses losses_of(const StepResult& result) const;
  Losses metrics_of(const StepResult& result) const;
  Losses named_losses(const StepResult& result) const;
  bool has_perplexity() const { return step_->has_perplexity(); }
  /// Micro-batches from `source`, through TrainStep::get_batch().
  MicroBatches batches_from(BatchSource& source) const;

  // ---- Data-parallel ranks ----
  /// The mean of a tensor over the data-parallel ranks.
  at::Tensor average(const at::Tensor& tensor) const;
  /// The tensors of the data-parallel ranks, concatenated along dim 0 (logits, labels...).
  at::Tensor gather(const at::Tensor& tensor) const;

 private:
  int64_t planned_iters() const;
  /// By the counters; the test split is always read from its start.
  int64_t consumed_samples(Split split) const;
  std::shared_ptr<const NodeFolders> find_folders() const;
  /// Builds the data for what `state_` has consumed and what is left, unless they have these sizes.
  void size_data();
  /// engine_->evaluate(), with the files of --logits-out.
  std::optional<StepResult> evaluate(Split split, BatchSource& source,
                                     const std::vector<int64_t>& micro_batches, const NextPart& next_part);
  StepMetrics next_step_metrics(const BatchSize& batch) const;
  StepInputs next_step_inputs() const;
  void add_learning_rates(StepMetrics& metrics) const;

  Mesh mesh_;
  at::Device device_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Family family_;
  std::optional<OwnRun> own_run_;
  TrainEpoch epoch_;
  Arguments args_;
  std::optional<ParamGroupOverrides> decoupled_;
  std::unique_ptr<TrainStep> step_;
  Finetuning finetuning_;
  bool removes_padding_ = false;
  std::unique_ptr<Timers> timers_;
  std::vector<std::unique_ptr<JobLock>> locks_;  // of the first rank of a node
  std::unique_ptr<TrainEngine> engine_;
  std::unique_ptr<TrainData> data_;
  TrainState state_;
  int64_t loaded_iteration_ = 0;
  BatchSchedule batches_;
  int64_t train_iters_ = 0;
  std::optional<NanPolicy> nan_policy_;
  std::optional<CheckpointedRun> checkpointed_;
  std::optional<CheckpointSaver> saver_;
  std::optional<HfOutput> hf_output_;
  std::string resumed_folder_;
};

}  // namespace teratron
