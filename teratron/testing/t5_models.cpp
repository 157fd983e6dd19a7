#include "teratron/testing/t5_models.h"

#include <ATen/CPUGeneratorImpl.h>

#include "teratron/models/t5/t5_family.h"

namespace teratron {

namespace {

constexpr int64_t t5_source = 12, t5_target = 8;

// Sets an option of both towers.
template <typename T>
void set_both(T5Config& config, T TransformerConfig::* option, const T& value) {
  config.encoder.*option = value;
  config.decoder.*option = value;
}

}  // namespace

T5Config small_t5_config() {
  const TransformerConfig tower{
      .layers = 2, .hidden = 16, .ffn_hidden = 24, .heads = 4, .query_groups = 4, .kv_channels = 4};
  T5Config config{.encoder = tower, .decoder = tower, .vocabulary = 37, .padded_vocabulary = 40};
  config.max_positions = t5_source;
  config.encoder.mask = Mask::full;
  config.decoder.layers = 4;
  config.decoder.cross_attention = true;
  config.decoder.first_dropout_site = uint64_t{1} << 32;
  return config;
}

T5Config published_t5_config() {
  T5Config config = small_t5_config();
  set_both(config, &TransformerConfig::position, PositionEmbedding::relative);
  config.encoder.relative = {.buckets = 8, .max_distance = 9, .bidirectional = true};
  config.decoder.relative = {.buckets = 8, .max_distance = 9};
  set_both(config, &TransformerConfig::norm, NormOptions{.kind = NormKind::rms});
  set_both(config, &TransformerConfig::activation, Activation::relu);
  set_both(config, &TransformerConfig::linear_bias, false);
  set_both(config, &TransformerConfig::softmax_scale, 1.0);
  config.output_bias = false;
  config.scaled_output = true;
  return config;
}

std::vector<T5Variant> t5_variants() {
  const T5Config plain = small_t5_config();
  T5Config dropout = plain, modern = plain, post_norm = plain, recompute = plain;
  const T5Config published = published_t5_config();
  T5Config published_dropout = published, published_recompute = published;
  set_both(dropout, &TransformerConfig::hidden_dropout, 0.2);
  set_both(dropout, &TransformerConfig::attention_dropout, 0.1);
  set_both<int64_t>(modern, &TransformerConfig::query_groups, 2);
  set_both(modern, &TransformerConfig::norm, NormOptions{.kind = NormKind::rms});
  set_both(modern, &TransformerConfig::activation, Activation::geglu);
  set_both(modern, &TransformerConfig::linear_bias, false);
  modern.tied_embeddings = modern.output_bias = false;
  set_both(post_norm, &TransformerConfig::residual_after_norm, true);
  set_both(recompute, &TransformerConfig::recompute,
           RecomputeConfig{.granularity = RecomputeConfig::Granularity::layers});
  set_both(published_dropout, &TransformerConfig::attention_dropout, 0.1);
  published_dropout.tied_embeddings = published_dropout.scaled_output = false;
  set_both(published_recompute, &TransformerConfig::recompute,
           RecomputeConfig{.granularity = RecomputeConfig::Granularity::layers, .layers = 2});
  return {{"Megatron-LM's", plain},
          {"relative positions, as published", published},
          {"the same with dropout", published_dropout},
          {"the same with recompute", published_recompute},
          {"dropout", dropout},
          {"untied, RMSNorm, GEGLU, groups, no biases", modern},
          {"post-norm", post_norm},
          {"recompute", recompute}};
}

T5Config random_t5_config(std::mt19937& random) {
  const std::vector<T5Variant> variants = t5_variants();
  const auto coin = [&random] { return random() % 2 == 0; };
  T5Config config = variants[random() % variants.size()].config;
  config.encoder.layers = 1 + static_cast<int64_t>(random() % 4);
  config.decoder.layers = 1 + static_cast<int64_t>(random() % 4);
  config.tied_embeddings = coin();
  config.output_bias = config.tied_embeddings && coin();
  set_both(config, &TransformerConfig::linear_bias, coin());
  set_both(config, &TransformerConfig::residual_after_norm, coin());
  set_both(config, &TransformerConfig::hidden_dropout, coin() ? 0.0 : 0.2);
  set_both(config, &TransformerConfig::attention_dropout, coin() ? 0.0 : 0.1);
  const auto granularity = static_cast<RecomputeConfig::Granularity>(random() % 3);
  set_both(config, &TransformerConfig::recompute, RecomputeConfig{.granularity = granularity});
  set_both(config, &TransformerConfig::offload, random_offload(random));
  return config;
}

Layout random_t5_layout(const T5Config& config, std::mt19937& random, int64_t ranks) {
  TransformerConfig all = config.decoder;
  all.layers += config.encoder.layers;
  Layout layout;
  do {
    layout = random_layout(all, random, ranks);
  } while (layout.chunks > 1);
  if (layout.pp == 1 || random() % 4 == 0) return layout;
  for (int64_t split = 1; split < layout.pp; ++split) {
    if (config.encoder.layers % split != 0 || config.decoder.layers % (layout.pp - split) != 0) continue;
    layout.split = split;
    layout.stages.clear();
    if (random() % 2 == 0) break;
  }
  return layout;
}

MicroBatch t5_batch(const T5Config& config, int64_t step, FlatRange samples) {
  // Not the default generator, which the rank threads share.
  at::Generator generator = at::detail::createCPUGenerator(300 + step);
  const auto draw = [&](int64_t bound, int64_t rows) {
    return at::randint(0, bound, {rows, test_samples}, generator, at::kLong)
        .narrow(1, samples.begin, samples.size())
        .contiguous();
  };
  const auto index = [&](int64_t length) {
    return at::arange(length, at::kLong).unsqueeze(1).expand({length, samples.size()}).contiguous();
  };
  // Equal counts of labels per micro-batch, so that the means of layouts agree.
  const at::Tensor used_S1 = at::arange(t5_target, at::kLong).lt(t5_target - 2).unsqueeze(1);
  return {.tensors = {{"encoder_tokens", draw(config.vocabulary, t5_source)},
                      {"encoder_index", index(t5_source)},
                      {"encoder_length", (t5_source - draw(4, 1)).t().contiguous()},
                      {"decoder_tokens", draw(config.vocabulary, t5_target)},
                      {"decoder_index", index(t5_target)},
                      {"labels", draw(config.vocabulary, t5_target)},
                      {"loss_mask", used_S1.expand({t5_target, samples.size()}).to(at::kFloat).contiguous()}},
          .sample_ids_B = at::arange(samples.begin, samples.end, at::kLong) + step * test_samples};
}

TestModel t5_model(const T5Config& config) {
  return {.plan = t5_plan(config, {}),
          .batch = [config](int64_t step, FlatRange samples) { return t5_batch(config, step, samples); },
          .smooth = config.encoder.activation != Activation::relu};
}

}  // namespace teratron
