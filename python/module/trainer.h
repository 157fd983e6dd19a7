// One rank's training, driven from Python (train/trainer.h, train/loop/train_loop.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/module/held.h"
#include "python/module/hooks.h"
#include "python/module/ranks.h"
#include "python/module/samples.h"
#include "python/module/settings.h"

#include "teratron/hf/weight_map.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron::python {

/// What a program brings; each may be nothing.
struct Hooks {
  Held step;          // see python_step()
  Held datasets;      // {"train": object, ...}, see PythonDataset
  Held param_groups;  // see python_param_groups()
};

/// A step or an evaluation, in Python's terms.
struct Result {
  StepResult step;
  Losses losses;
  Losses metrics;
  int64_t consumed_samples = 0;
};

/// A parameter of the model, whatever ranks have parts of it.
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;  // without padding
  at::ScalarType dtype;
};

/// One of our tensors as those of Hugging Face whose rows it has (hf/weight_map.h).
struct HfPieces {
  std::vector<HfSource> sources;
  std::vector<RowSlice> slices;
};

/// Reads the samples that a split gives this data-parallel rank, a step at a time.
class SplitReader {
 public:
  SplitReader(BatchReader reader, int64_t micro_batches)
      : reader_(std::move(reader)), micro_batches_(micro_batches) {}
  /// See stacked(); nothing at the end of the data.
  std::optional<Tensors> next();

 private:
  BatchReader reader_;
  int64_t micro_batches_;
};

/// All functions but the getters are collective over the mesh. After close() they throw RuntimeError.
class TrainerHandle {
 public:
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
  /// A step over the data of the settings.
  Result step();
  /// A step over the samples that the ranks that read give; the others give nothing.
  Result step(const std::optional<Tensors>& samples);
  Result evaluate(Split split, int64_t steps);
  Result evaluate(const std::optional<Tensors>& samples);
  /// Logits [S, B, vocabulary] of a step's samples of this data-parallel rank; undefined off the last stage.
  at::Tensor logits(const std::optional<Tensors>& samples);
  /// Trains to the end as the program does, then saves and evaluates. `on_step` returns false to stop.
  ExitCode train(const StepObserver& on_step);
  /// Null on ranks that do not read.
  std::unique_ptr<SplitReader> read(Split split);
  /// All parameters of the model, on every rank.
  std::vector<ParameterInfo> whole_parameters();
  /// The whole parameter, on every rank's device.
  at::Tensor gathered(const ParameterInfo& info);
  /// Pieces of each parameter, in order. UserError(checkpoint) if no model of transformers is this one.
  std::vector<HfPieces> hf_pieces(const std::vector<ParameterInfo>& infos);
  /// Writes this rank's part of a whole parameter. Not collective.
  void assign(const std::string& name, const at::Tensor& whole);
  /// After the last assign(): the optimizer takes the new weights.
  void finish_assignment();
  void close();

  bool is_open() const { return loop_ != nullptr; }
  Trainer& trainer();
  const Settings& settings() const { return settings_; }
  const Mesh& mesh() const { return *mesh_; }
  Rank& rank() { return *rank_; }
  /// The settings as its checkpoints hold them: JSON.
  std::string checkpoint_config();

 private:
  Family family_with(const Held& datasets) const;
  /// Does `work`. If that fails, the data is read again from where the last step ended, and other processes
  /// end.
  template <typename Work>
  auto guarded(const Work& work);
  std::unique_ptr<BatchSource> source_of(Split split, const std::optional<Tensors>& samples);
  Result result_of(StepResult step);

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
  bool has_trained_ = false;
  std::shared_ptr<std::function<void()>> close_at_end_;
};

}  // namespace teratron::python
