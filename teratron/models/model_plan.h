// What the engine, the planner, generation and benchmarks know of a model: its towers, its batch columns, the
// tensors that its pipeline stages exchange, its losses and its operators.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "teratron/data/batch.h"
#include "teratron/models/image_tokens.h"
#include "teratron/models/inference.h"
#include "teratron/models/model.h"
#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// Consecutive layers of one kind: "encoder", "decoder". Pipeline stages number the layers of all towers
/// through, in order (pipeline/stage_spec.h).
struct Tower {
  std::string name;
  int64_t layers = 0;
};

/// The layers of tower `t` on the stage.
LayerRange layers_of_tower(const std::vector<Tower>& towers, size_t t, const StageSpec& stage);

/// A tensor that pipeline stages send to the next.
struct Channel {
  /// Shape on a rank. `sequence_shards`: number of shards of a sequence, the tensor-parallel size under
  /// sequence parallelism, else 1.
  using Shape = std::function<std::vector<int64_t>(const MicroBatch&, int64_t sequence_shards)>;

  std::string name;
  Shape shape;
  std::optional<at::ScalarType> dtype = {};  // nullopt: the model's
  bool differentiable = true;                // its gradient is sent back
  /// Whether it crosses the bound after the layers before `layer` (through all towers); null: always.
  std::function<bool(int64_t layer)> crosses = nullptr;
  bool of_source = false;  // in generation: it exists only where the micro-batch encodes a source
};

/// What a model that writes text takes and gives in a step of generation (generate/step.h), besides its
/// channels.
struct TextOptions {
  std::string tokens = "tokens", index = "sequence_index";  // columns: ids, and positions in their texts
  /// In the last stage's output, with a row for each token, any of which Model::logits() takes.
  std::string hidden = "hidden";
  /// Tokens of the longest text with the first rows of a rotation by length. 0: there is no such rotation.
  int64_t longest_short = 0;
  std::optional<ImageTokens> images = {};  // nullopt: the model reads none

  /// The index of a position in a text that has so many tokens in the end (rotations: attention/rope.h).
  int64_t row_of(int64_t position, int64_t tokens, int64_t max_positions) const {
    return longest_short > 0 && tokens > longest_short ? position + max_positions : position;
  }
};

/// A source that an encoder reads before the text is written.
struct SourceOptions {
  std::string tokens, index;  // columns, in the step that encodes it
};

/// [S / shards, B, width] for the S and B of a column that all stages have.
Channel::Shape sequence_shape(std::string column, int64_t width);

/// What the layers of a model measured in a step.
struct LayerMetrics {
  std::vector<std::pair<std::string, double>> losses = {};  // logged after the model's losses
  struct Row {
    std::string name;
    int64_t layer = 0;
    std::vector<double> values;
  };
  std::vector<Row> rows = {};
};

/// Numbers that layers add up in training (AuxiliaryLosses::sums), over the micro-batches of a step, all
/// replicas and all stages.
struct LayerSums {
  int64_t count = 0;
  std::function<LayerMetrics(std::span<const double> sums)> read = nullptr;
};

/// What a rank of a pipeline stage computes for one micro-batch, in order of forward (nn/cost/operator.h).
using OperatorsOf = std::function<std::vector<Operator>(const RankBatch& batch, const StageSpec& stage)>;

using ModelBuilder = std::function<std::unique_ptr<Model>(const StageContext&)>;

struct ModelPlan {
  std::vector<Tower> towers;
  BatchSchema batch;
  /// The model takes packed rows (MicroBatch). Where rows have padding, column segment_start says where the
  /// sample ends.
  bool packs_rows = false;
  std::vector<Channel> channels;
  /// Names of the losses in the log, in the order of Model::losses(). The gradient is that of the sum of
  /// their means.
  std::vector<std::string> losses = {"lm loss"};
  LayerSums layer_sums = {};
  /// What further losses count in a micro-batch of a rank of the last stage, for losses per token, whose
  /// counts are those of a step; null: there are none.
  std::function<at::Tensor(const MicroBatch& batch)> loss_counts = nullptr;
  /// Tokens without and with padding; 0: the model has no logits.
  int64_t vocabulary = 0;
  int64_t padded_vocabulary = 0;
  int64_t max_positions = 0;  // of a sequence
  TextOptions text = {};
  std::optional<SourceOptions> source = {};  // the text is a decoder's, which attends to the encoder's output
  ModelBuilder build;
  Inference inference = {};                 // no inputs: the model is only trained
  std::optional<PipelineSplit> split = {};  // encoder and decoder on different pipeline stages
  /// FLOPs, memory and time of a stage follow from it.
  OperatorsOf operators = nullptr;
  std::string summary = {};  // one line, for reports

  int64_t layers() const;
};

/// The stages that the settings select for the model.
PipelineLayout pipeline_layout(const Arguments& args, const ModelPlan& plan);

}  // namespace teratron
