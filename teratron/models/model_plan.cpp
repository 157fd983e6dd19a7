#include "teratron/models/model_plan.h"

#include <algorithm>

#include "teratron/settings/component_options.h"

namespace teratron {

LayerRange layers_of_tower(const std::vector<Tower>& towers, size_t t, const StageSpec& stage) {
  int64_t before = 0;
  for (size_t i = 0; i < t; ++i) before += towers[i].layers;
  const int64_t first = std::clamp<int64_t>(stage.first_layer - before, 0, towers.at(t).layers);
  const int64_t end = std::clamp<int64_t>(stage.first_layer + stage.layers - before, 0, towers[t].layers);
  return {first, end - first};
}

Channel::Shape sequence_shape(std::string column, int64_t width) {
  return [column = std::move(column), width](const MicroBatch& batch, int64_t sequence_shards) {
    const at::Tensor& like_SB = batch[column];
    TERATRON_ASSERT(like_SB.defined(), "no column {}", column);
    return std::vector<int64_t>{like_SB.size(0) / sequence_shards, like_SB.size(1), width};
  };
}

PipelineLayout pipeline_layout(const Arguments& args, const ModelPlan& plan) {
  PipelineLayoutOptions options = layout_options(args);
  options.layers = plan.layers();
  options.split = plan.split;
  return pipeline_layout(options);
}

int64_t ModelPlan::layers() const {
  int64_t total = 0;
  for (const Tower& tower : towers) total += tower.layers;
  return total;
}

}  // namespace teratron
