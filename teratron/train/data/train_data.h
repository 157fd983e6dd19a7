// The train, valid and test datasets of a training.
#pragma once

#include <array>
#include <memory>
#include <stop_token>

#include "teratron/data/resizable_dataset.h"
#include "teratron/models/family.h"
#include "teratron/train/data/batch_source.h"
#include "teratron/train/data/train_context.h"

namespace teratron {

enum class Split : uint8_t { train, valid, test };

/// Samples of train, valid and test. A split of 0 samples is not built.
using SplitSamples = std::array<int64_t, 3>;

/// How far a training has got.
struct TrainProgress {
  int64_t train_iters = 0;  // of the whole training
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
};

/// What the training has consumed and still needs. For a new one these are Megatron-LM's sizes.
/// UserError(config) beyond 64 bits.
SplitSamples split_samples(const Arguments& args, const TrainProgress& progress);

class TrainData {
 public:
  struct Source {
    SplitSamples samples = {};
    BatchSchema schema;
    at::Device device = at::kCPU;                             // of the micro-batches
    std::shared_ptr<const ResizableDataset> epoch = nullptr;  // of with_epochs()
  };
  /// Builds the datasets on ranks that read: tensor-parallel rank 0 of each stage that uses data. Collective.
  TrainData(const TrainContext& context, const Family& family, const Source& source);

  const SplitSamples& samples() const { return source_.samples; }
  bool has(Split split) const { return present_[static_cast<size_t>(split)]; }
  /// Micro-batches of this data-parallel rank after the given number of consumed samples. UserError(data) if
  /// there is no such split.
  std::unique_ptr<BatchSource> open(Split split, int64_t consumed_samples) const;
  /// Micro-batches of samples that the program reads; the split need not be there.
  std::unique_ptr<BatchSource> open(Split split, int64_t consumed_samples, BatchReader reader) const;
  /// The samples that open() gives the ranks, before they share them; null on ranks that do not read. The
  /// split must be there. Not collective.
  BatchReader read(Split split, int64_t consumed_samples) const;

  /// The whole validation split once, in micro-batches of one sample: this data-parallel rank's. Rank 0 has
  /// the most. Kept with --num-train-epochs and --full-validation, unless evaluation is off.
  bool has_whole_valid() const { return whole_valid_samples_ > 0; }
  int64_t whole_valid_microbatches(int64_t data_parallel_rank) const;
  std::unique_ptr<BatchSource> open_whole_valid() const;

 private:
  void build(const TrainContext& context, const Family& family, const std::stop_token& stop);
  BatchSamplerOptions sampler(int64_t consumed_samples) const;
  BatchSource::Options source_options(Split split, const BatchSamplerOptions& sampler) const;

  Arguments args_;
  Source source_;
  Mesh mesh_;
  std::array<std::shared_ptr<const Dataset>, 3> datasets_;
  std::array<bool, 3> present_ = {};
  std::shared_ptr<const Dataset> whole_valid_;
  int64_t whole_valid_samples_ = 0;
};

/// An epoch of --num-train-epochs.
struct TrainEpoch {
  int64_t samples = 0;
  std::shared_ptr<const ResizableDataset> data =
      nullptr;         // of the train split; TrainData need not build it again
  double steps = 0.0;  // with --train-iters, which then is the length; 0: the epochs are the length
};

/// Converts --num-train-epochs to train_iters, unless these are given; others are unchanged. Builds the
/// training data. Collective.
Arguments with_epochs(const TrainContext& context, const Family& family, TrainEpoch& epoch);
/// Converts --log-lines to log_interval.
Arguments with_log_lines(Arguments args);

}  // namespace teratron
