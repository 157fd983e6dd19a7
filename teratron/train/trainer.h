// One rank's model, data and counters: what a training loop drives, be it the program's (training_run.h) or one's own.
//
//   Training training(args, mesh);                       // model, optimizer, schedules and data, as the settings say
//   training.load();                                     // from --load
//   const auto source = training.open(Split::train);
//   while (training.state().iteration < 100) {
//     const StepNumbers numbers = training.train_step(*source).numbers;
//     if (training.is_main_rank()) print("{}", numbers.loss);
//   }
//   training.save();                                     // to --save
//
// Everything but the simple questions is collective over the mesh: all ranks call it, in the same order. Errors are those
// of the layers below, thrown on every rank.
#pragma once

#include <memory>
#include <optional>

#include "teratron/telemetry/metrics.h"
#include "teratron/telemetry/timers.h"
#include "teratron/train/guards/nonfinite.h"
#include "teratron/train/guards/run_lock.h"
#include "teratron/train/model_checkpoint.h"
#include "teratron/train/registry.h"
#include "teratron/train/run_data.h"
#include "teratron/train/run_state.h"

namespace teratron {

/// A step that was issued but whose numbers the host has not read.
struct IssuedStep {
  StepInFlight numbers;
  StepMetrics metrics;
  BadStep made_from = {};  // should it prove to be one; without batches where nobody asks
};

struct FinishedStep {
  StepNumbers numbers;
  StepMetrics metrics;  // losses by name, learning rate, loss scale...
};

class Training {
 public:
  /// `args` are finished (finish()). Locks --save; says what it builds on rank 0.
  Training(const Arguments& args, const Mesh& mesh, const Registry& registry = {});

  /// Resumes from --load, or finetunes from --pretrained-checkpoint where that holds nothing. False: random weights.
  bool load();
  /// Writes --save/iter_*; returns what was written. Under --async-save nothing is returned: the save goes on in the
  /// background, from a copy in host memory, after the save before it has been waited for.
  std::optional<SaveMetrics> save();
  /// Under --async-save, after absorb(): what is due of the save; returns what was written, once it is committed. A
  /// failure is thrown here, on all ranks after the same step.
  std::optional<SaveMetrics> continue_save();
  /// Waits for the save that is under way; nothing where there is none. A save that is not waited for in the end is lost:
  /// run_loop() (cli/program.h) waits.
  std::optional<SaveMetrics> finish_save();

  // ---- Questions ----
  const Arguments& args() const { return args_; }
  const Mesh& mesh() const { return mesh_; }
  const RunState& state() const { return state_; }
  RunState& state() { return state_; }
  const GPTConfig& model() const { return model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Trainer& trainer() { return *trainer_; }
  Timers& timers() { return *timers_; }
  at::Device device() const { return device_; }
  /// Steps of the whole training.
  int64_t train_iters() const;
  /// Of the next step.
  BatchSize batch_size() const { return batches_.at(state_.consumed_train_samples); }
  int64_t global_batch_size() const { return batch_size().running; }
  /// The last rank: it has the loss, as the last pipeline stage, and therefore speaks.
  bool is_main_rank() const { return mesh_.rank() == mesh_.world_size() - 1; }
  bool has(Split split) const { return data_->has(split); }
  /// The saved step is the current one.
  bool is_saved() const { return saved_iteration_ == state_.iteration; }

  // ---- Steps ----
  /// Micro-batches of this data-parallel rank: train and valid from the samples consumed so far on.
  std::unique_ptr<BatchSource> open(Split split) const;
  /// One step over global_batch_size() samples; the counters move on. A step that --iterations-to-skip names consumes
  /// its samples and does nothing else: its metrics say that it was skipped and have no losses.
  FinishedStep train_step(BatchSource& source);
  /// The same over micro-batches of one's own, batch_size().microbatches of them.
  FinishedStep train_step(const MicroBatches& microbatches);
  /// Mean losses over so many steps' samples, without training. The counters stay.
  StepNumbers eval_step(BatchSource& source, int64_t steps = 1);
  /// Logits [S, B, vocabulary] of one micro-batch of this data-parallel rank, without dropout: on the last pipeline
  /// stage, undefined on the others.
  at::Tensor logits(const MicroBatch& batch) { return trainer_->logits(batch); }
  /// The two halves of a step: the host may issue the next one before it reads the numbers of this one. The greatest
  /// `stop_request` of all ranks comes back in the numbers. Fault (numerics) where the NaN policy says stop.
  IssuedStep issue(const MicroBatches& microbatches, int64_t stop_request = 0);
  /// Whether --iterations-to-skip names the next step; and that step.
  bool skips_next() const;
  StepMetrics skip(const MicroBatches& microbatches);
  /// Whether the next step depends on the numbers of this one: some steps may be skipped for theirs.
  bool must_read_numbers() const { return args_.fp16 || args_.max_nan_iterations > 0; }
  FinishedStep absorb(IssuedStep step);
  /// "lm loss" and the train step's metrics by name.
  Losses named_losses(const StepNumbers& numbers) const;
  /// What a step draws from `source`, through the train step's get_batch().
  MicroBatches from(BatchSource& source) const;

  // ---- Data-parallel ranks ----
  /// The mean of a tensor over the data-parallel ranks.
  at::Tensor average(const at::Tensor& tensor) const;
  /// The tensors of the data-parallel ranks one after the other along dim 0 (logits, labels...).
  at::Tensor gather(const at::Tensor& tensor) const;

 private:
  void announce() const;
  void set_old_run_aside();
  void warn_of_old_run() const;
  std::optional<CheckpointInfo> load_from(const std::string& directory, bool weights_only);
  std::string config_json() const;
  StepMetrics next_step_metrics(const BatchSize& batch) const;
  void add_learning_rates(StepMetrics& metrics) const;
  bool stops_at_nan() const { return args_.check_for_nan_in_loss_and_grad && !args_.fp16; }
  /// True: the step changed nothing. Stops where too many did so for NaN.
  bool was_skipped(const StepNumbers& numbers, const IssuedStep& step);
  [[noreturn]] void stop_at_nan(const StepNumbers& numbers, const IssuedStep& step);
  struct SaveUnderWay {
    int64_t iteration = 0;
    double begin = 0.0;  // wall clock
    std::unique_ptr<BackgroundSave> writer = nullptr;
  };
  SaveMetrics committed(const SaveUnderWay& save, const std::filesystem::path& path);

  Mesh mesh_;
  at::Device device_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Registry registry_;
  Arguments args_;
  GPTConfig model_;
  std::optional<ParamGroupRule> decoupled_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<Timers> timers_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunData> data_;
  RunState state_;
  BatchSchedule batches_;
  int64_t nan_iterations_ = 0;  // in a row
  int64_t saved_iteration_ = -1;
  int64_t save_progress_ = 0;  // the least of all ranks', as of the last step
  std::optional<SaveUnderWay> saving_;
};

/// --num-train-epochs as train_iters; other settings come back as they are. Builds the training data's indices. Collective.
Arguments with_epochs(const Arguments& args, const Registry& registry, const Tokenizer& tokenizer,
                      const Mesh& mesh);

}  // namespace teratron
