#include "teratron/testing/bert_models.h"

#include <ATen/CPUGeneratorImpl.h>

#include "teratron/models/bert/bert_family.h"
#include "teratron/models/bert/data/bert_dataset.h"
#include "teratron/train/data/row_packing.h"

namespace teratron {

namespace {

constexpr int64_t length = 8, predictions = 3;

}  // namespace

BertConfig small_bert_config() {
  BertConfig config{
      {{.layers = 4, .hidden = 16, .ffn_hidden = 24, .heads = 4, .query_groups = 4, .kv_channels = 4}}};
  config.mask = Mask::full;
  config.vocabulary = 37;
  config.padded_vocabulary = 40;
  config.max_positions = length;
  return config;
}

std::vector<BertVariant> bert_variants() {
  const BertConfig plain = small_bert_config();
  BertConfig post_norm = plain, one_loss = plain, dropout = plain, modern = plain;
  post_norm.residual_after_norm = true;
  post_norm.activation = Activation::gelu_erf;
  one_loss.binary_head = false;
  one_loss.token_types = 0;
  dropout.hidden_dropout = 0.2;
  dropout.attention_dropout = 0.1;
  modern.position = PositionEmbedding::rope;
  modern.tied_embeddings = false;
  modern.query_groups = 2;
  modern.norm.kind = NormKind::rms;
  modern.activation = Activation::swiglu;
  return {{"Megatron-LM's", plain},
          {"post-norm", post_norm},
          {"no binary head", one_loss},
          {"dropout", dropout},
          {"untied, RoPE, RMSNorm, SwiGLU, groups", modern}};
}

BertConfig random_bert_config(std::mt19937& random) {
  const std::vector<BertVariant> variants = bert_variants();
  const auto coin = [&random] { return random() % 2 == 0; };
  BertConfig config = variants[random() % variants.size()].config;
  config.layers = 3 + static_cast<int64_t>(random() % 3);
  config.linear_bias = coin();
  config.qk_norm = coin();
  if (config.qk_norm) config.kv_channels = 8;  // a norm over few channels magnifies rounding
  config.residual_after_norm = coin();
  config.tied_embeddings = coin();
  config.tanh_head_gelu = coin();
  config.hidden_dropout = coin() ? 0.0 : 0.2;
  config.attention_dropout = coin() ? 0.0 : 0.1;
  config.recompute.granularity = static_cast<RecomputeConfig::Granularity>(random() % 3);
  config.offload = random_offload(random);
  return config;
}

MicroBatch bert_batch(const BertConfig& config, int64_t step, FlatRange samples) {
  // Not the default generator, which the rank threads share.
  at::Generator generator = at::detail::createCPUGenerator(200 + step);
  const auto draw = [&](int64_t bound, std::vector<int64_t> shape) {
    shape.push_back(test_samples);
    return at::randint(0, bound, shape, generator, at::kLong)
        .narrow(static_cast<int64_t>(shape.size()) - 1, samples.begin, samples.size())
        .contiguous();
  };
  const at::Tensor lengths_B = length - draw(4, {});
  std::vector<int32_t> bounds;
  for (int64_t sample = 0; sample < samples.size(); ++sample) {
    const auto first = static_cast<int32_t>(sample * length);
    const auto tokens = static_cast<int32_t>(lengths_B[sample].item<int64_t>());
    bounds.push_back(first);
    if (tokens < length) bounds.push_back(first + tokens);
  }
  bounds.push_back(static_cast<int32_t>(samples.size() * length));
  // Equal counts per micro-batch, so that the means of layouts agree. The last entry is unused.
  const at::Tensor used_P = at::arange(predictions, at::kLong).lt(predictions - 1).unsqueeze(1);
  const at::Tensor positions_PB = draw(5, {predictions}) * used_P;
  const at::Tensor mask_PB = used_P.expand_as(positions_PB).to(at::kFloat);
  const at::Tensor index_SB = at::arange(length, at::kLong).unsqueeze(1).expand({length, samples.size()});
  return {.tensors = {{"tokens", draw(config.vocabulary, {length})},
                      {"types", draw(2, {length})},
                      {"sequence_index", index_SB.contiguous()},
                      {"cu_seqlens", at::tensor(bounds, at::kInt)},
                      {"masked_positions", positions_PB.t().contiguous()},
                      {"masked_labels", draw(config.vocabulary, {predictions}).t().contiguous()},
                      {"masked_loss_mask", mask_PB.t().contiguous()},
                      {"is_random", draw(2, {1}).t().contiguous()}},
          .sample_ids_B = at::arange(samples.begin, samples.end, at::kLong) + step * test_samples};
}

TestModel bert_model(const BertConfig& config) {
  return {bert_plan(config, {}),
          [config](int64_t step, FlatRange samples) { return bert_batch(config, step, samples); }, false};
}

std::vector<int64_t> bert_row_lengths(const MicroBatch& batch) {
  const at::Tensor bounds = batch["cu_seqlens"];
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i + 1 < bounds.size(0); ++i) {
    const auto first = bounds[i].item<int32_t>(), end = bounds[i + 1].item<int32_t>();
    if (first % length == 0) lengths.push_back(end - first);
  }
  return lengths;
}

TestModel packed_bert_model(const BertConfig& config, int64_t tensor_parallel_size) {
  const BatchSchema schema = bert_schema({.sequence_length = length, .predictions = predictions});
  const auto batch = [=](int64_t step, FlatRange samples) {
    const MicroBatch rows = bert_batch(config, step, samples);
    return without_padding(
        rows, schema, {.lengths = bert_row_lengths(rows), .row = length, .multiple = tensor_parallel_size});
  };
  return {bert_plan(config, {}), batch, false};
}

}  // namespace teratron
