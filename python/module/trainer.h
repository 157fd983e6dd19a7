// One rank's training, driven from Python (train/trainer.h, train/loop/train_loop.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "python/module/held.h"
#include "python/module/hooks.h"
#include "python/module/ranks.h"
#include "python/module/samples.h"
#include "python/module/settings.h"

#include "teratron/tasks/live_model.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron::python {

/// What a program brings; each may be nothing.
struct Hooks {
  Held step;          // see python_step()
  Held datasets;      // {"train": object, ...}, see PythonDataset
  Held param_groups;  // see python_param_groups()
  Held model;         // see python_model()
};

/// A step or an evaluation, in Python's terms.
struct Result {
  StepResult step;
  Losses losses;
  Losses metrics;
  int64_t consumed_samples = 0;
};

/// A step's result, which may be known later than step() returns.
class StepOutcome {
 public:
  bool is_known() const { return is_known_; }
  void set(Result result) {
    result_ = std::move(result);
    is_known_ = true;
  }
  /// RuntimeError if the step failed after step() had returned.
  const Result& result() const;

 private:
  std::optional<Result> result_;
  std::atomic<bool> is_known_{false};
};

/// Reads the samples that a split gives this data-parallel rank, a step at a time.
class SplitReader {
 public:
  SplitReader(BatchReader reader, int64_t micro_batches)
      : reader_(std::move(reader)), micro_batches_(micro_batches) {}
  /// With the GIL, which its threads may wait for.
  ~SplitReader();
  SplitReader(const SplitReader&) = delete;
  SplitReader& operator=(const SplitReader&) = delete;
  /// See stacked(); nothing at the end of the data.
  std::optional<Tensors> next();

 private:
  BatchReader reader_;
  int64_t micro_batches_;
};

/// All functions but the getters are collective over the mesh. After close() they throw RuntimeError.
class TrainerHandle {
 public:
  /// A call at work, with the GIL released. Calls of other threads wait for their turn. RuntimeError in a
  /// hook of the call that has it, and in a dataset, for which a step may wait.
  class Turn {
   public:
    explicit Turn(TrainerHandle& trainer);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    TrainerHandle& trainer_;
  };
  /// A callback of train(), which may call all but close().
  class Pause {
   public:
    explicit Pause(TrainerHandle& trainer);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    TrainerHandle& trainer_;
  };

  /// With the GIL released.
  TrainerHandle(Settings settings, std::shared_ptr<Rank> rank, Hooks hooks);
  ~TrainerHandle();
  TrainerHandle(const TrainerHandle&) = delete;
  TrainerHandle& operator=(const TrainerHandle&) = delete;

  bool load();
  /// Goes on from the checkpoint in a folder that is not this run's; false: there is none.
  bool load(const std::string& folder);
  /// The folder of the checkpoint.
  std::string save();
  /// Saves to another folder than --save.
  void save(const std::string& folder);
  /// A step over the data of the settings. With one rank, on a GPU, its outcome is known when the next step
  /// is launched, or earlier, when somebody waits for it: as in the program, the host is a step ahead.
  std::shared_ptr<StepOutcome> step();
  /// A step over the samples that the ranks that read give; the others give nothing.
  std::shared_ptr<StepOutcome> step(const std::optional<Tensors>& samples);
  /// Waits for the step that was launched last, if its outcome is not known. Fault as train_step().
  void finish_step();
  /// Whether the host may be a step ahead: by default with one rank, on a GPU.
  void run_ahead(bool on) { runs_ahead_ = on; }
  Result evaluate(Split split, int64_t steps);
  Result evaluate(const std::optional<Tensors>& samples);
  /// Logits [S, B, vocabulary] of a step's samples of this data-parallel rank; undefined off the last stage.
  at::Tensor logits(const std::optional<Tensors>& samples);
  /// Trains to the end as the program does, then saves and evaluates. `on_step` returns false to stop.
  ExitCode train(const StepObserver& on_step);
  /// Null on ranks that do not read.
  std::unique_ptr<SplitReader> read(Split split);
  /// The halves of step(samples): its gradients, then its update. RuntimeError if there are no gradients.
  void compute_gradients(const std::optional<Tensors>& samples);
  Result update();
  /// Answers of the model as it is to requests, objects of JSON (generate/json/request_json.h), as such
  /// objects with prompt_tokens; `seed`: of those without, in place of --seed. UserError(config, data).
  std::vector<std::string> answers(const std::vector<std::string>& requests, std::optional<int64_t> seed);
  /// Finishes what is under way. With the GIL released.
  void close();
  /// In turn. RuntimeError in a callback of train().
  void close_in_turn();

  bool is_open() const { return !is_closed_; }
  /// For what does not depend on the outcome of the last step.
  Trainer& trainer();
  /// After finish_step().
  Trainer& finished_trainer();
  const Settings& settings() const { return settings_; }
  const Mesh& mesh() const { return *mesh_; }
  Rank& rank() { return *rank_; }
  /// The settings as its checkpoints hold them: JSON.
  std::string checkpoint_config();

 private:
  void begin_turn();
  void end_turn();
  Family family_with(const Hooks& hooks) const;
  /// Does `work`. If that fails, the data is read again from where the last step ended, and other processes
  /// end.
  template <typename Work>
  auto guarded(const Work& work);
  std::unique_ptr<BatchSource> source_of(Split split, const std::optional<Tensors>& samples);
  Result result_of(StepResult step);
  std::shared_ptr<StepOutcome> launch(BatchSource& source);

  Settings settings_;
  std::shared_ptr<Rank> rank_;
  Hooks hooks_;
  std::optional<Mesh> mesh_;
  Registry registry_;
  Family family_;
  StopSignals signals_{StopSignals::Unhandled()};
  std::unique_ptr<TrainLoop> loop_;
  std::unique_ptr<BatchSource> source_;  // of the settings' data
  int64_t source_position_ = -1;         // consumed samples after its last step
  std::optional<StepGradients> gradients_;
  struct Launched {
    PendingStep step;
    std::shared_ptr<StepOutcome> outcome;
    int64_t consumed_samples = 0;
  };
  std::optional<Launched> launched_;
  bool runs_ahead_ = false;
  std::unique_ptr<LiveModel> live_;
  bool has_trained_ = false;
  std::mutex turns_;
  std::condition_variable turn_ended_;
  std::thread::id worker_;  // has the turn
  int64_t pauses_ = 0;
  bool is_closed_ = false;  // under the GIL
  std::shared_ptr<std::function<void()>> close_at_end_;
};

}  // namespace teratron::python
