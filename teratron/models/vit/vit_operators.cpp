#include "teratron/models/vit/vit_operators.h"

#include <ATen/ATen.h>

#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

// Every tensor-parallel rank computes the head on the class tokens.
RankSizes head_sizes(RankSizes sizes) {
  sizes.tokens = sizes.local_tokens = sizes.samples;
  sizes.gathers = false;
  sizes.residual_stream = sizes.hidden = sizes.whole_hidden();
  return sizes;
}

}  // namespace

OperatorsOf vit_operators(const VitConfig& config) {
  return [config](const RankBatch& batch, const StageSpec& stage) {
    const RankSizes sizes(hidden_states(config), batch);
    const double width = as_real(config.hidden);
    std::vector<Operator> all;
    if (stage.embedding)
      all.push_back(
          gemm_operator("conv1", sizes, as_real(config.channels * config.patch * config.patch), width));
    append(all, stack_operators("encoder", config, batch,
                                {.layers = {stage.first_layer, stage.layers},
                                 .received = !stage.embedding,
                                 .ends = stage.head}));
    if (!stage.head) return all;
    const RankSizes head = head_sizes(sizes);
    const bool mlp = config.head == VitConfig::HeadKind::mlp;
    if (mlp) all.push_back(gemm_operator("classification_head.dense_in", head, width, width));
    all.push_back(gemm_operator(mlp ? "classification_head.dense_out" : "classification_head", head, width,
                                as_real(config.classes)));
    return all;
  };
}

Inference vit_inference(const VitConfig& config) {
  const int64_t rows = config.rows();
  return {.inputs = {{.name = "pixel_values", .item = {config.channels, config.height, config.width}}},
          .of_texts = true,
          .batch =
              [rows](const NamedTensors& inputs, const std::string& /*where*/) {
                const at::Tensor& pixels = inputs["pixel_values"];
                const at::Tensor index_S1 = at::arange(rows, pixels.options().dtype(at::kLong)).unsqueeze(1);
                return MicroBatch{.tensors = {{"pixel_values", pixels},
                                              {"sequence_index", index_S1.expand({rows, pixels.size(0)})}},
                                  .training = false};
              },
          .divide =
              [](const NamedTensors& inputs, int64_t images, const std::string& /*where*/) {
                const at::Tensor& pixels = inputs["pixel_values"];
                std::vector<NamedTensors> parts;
                for (int64_t first = 0; first < pixels.size(0); first += images) {
                  const int64_t count = std::min(images, pixels.size(0) - first);
                  parts.push_back({{"pixel_values", pixels.narrow(0, first, count)}});
                }
                return parts;
              }};
}

}  // namespace teratron
