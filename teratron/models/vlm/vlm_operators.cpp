#include "teratron/models/vlm/vlm_operators.h"

#include "teratron/models/gpt/gpt_operators.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/vlm/vision_model.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/cost/mlp_cost.h"
#include "teratron/nn/cost/norm_cost.h"

namespace teratron {

namespace {

// Tower and projector have neither sequence nor context parallelism.
RankBatch image_batch(const VisionConfig& config, const RankBatch& batch, int64_t rows) {
  RankBatch images = batch;
  images.batch = {.samples = batch.batch.samples, .sequence_length = rows};
  images.segmented = false;
  images.fp8 = false;
  images.sequence_parallel = false;
  images.context_parallel = 1;
  if (!divides_tower(config, batch.tensor_parallel)) images.tensor_parallel = 1;
  return images;
}

std::vector<Operator> tower_operators(const VisionConfig& config, const RankBatch& batch) {
  const RankBatch images = image_batch(config, batch, config.positions());
  const RankSizes sizes(hidden_states(config.blocks), images);
  const auto width = as_real(config.channels * config.patch * config.patch);
  std::vector<Operator> all;
  all.push_back(gemm_operator("vision_model.conv1", sizes, width, as_real(config.blocks.hidden)));
  if (config.kind == VisionConfig::Kind::clip)
    all.push_back(norm_operator("vision_model.ln_pre", config.blocks.norm, sizes));
  append(all, stack_operators("vision_model.decoder", config.blocks, images,
                              {.layers = {0, config.used_blocks()}}));
  return all;
}

}  // namespace

OperatorsOf vlm_operators(const VlmConfig& config) {
  const OperatorsOf language = gpt_operators(config.language);
  return [config, language](const RankBatch& batch, const StageSpec& stage) {
    std::vector<Operator> all;
    if (stage.embedding) {
      all = tower_operators(config.vision, batch);
      const RankBatch rows = image_batch(config.vision, batch, config.vision.rows());
      all.push_back(mlp_operator("vision_projection.encoder", config.projector,
                                 RankSizes({.width = config.vision.features()}, rows)));
      // A frozen tower has no backward.
      for (size_t i = 0; config.vision.frozen && i + 1 < all.size(); ++i) all[i].saved = 0.0;
    }
    append(all, language(batch, stage));
    return all;
  };
}

}  // namespace teratron
