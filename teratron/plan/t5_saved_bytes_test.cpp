// The bytes that a T5's operators declare against those that a built one allocates.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "teratron/models/t5/data/t5_dataset.h"
#include "teratron/models/t5/t5.h"
#include "teratron/models/t5/t5_operators.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/memory_meter.h"
#include "teratron/testing/t5_models.h"

namespace teratron {
namespace {

constexpr int64_t source_rows = 128, target_rows = 64, t5_samples = 4;

T5Config wide(T5Config config) {
  for (TransformerConfig* tower : {&config.encoder, &config.decoder}) {
    tower->hidden = 64;
    tower->ffn_hidden = 256;
    tower->kv_channels = 16;
  }
  config.vocabulary = 1000;
  config.padded_vocabulary = 1024;
  config.max_positions = source_rows;
  return config;
}

MicroBatch wide_batch(const T5Config& config) {
  const auto draw = [&config](int64_t rows) {
    return at::randint(0, config.vocabulary, {rows, t5_samples}, at::kLong);
  };
  const auto index = [](int64_t rows) {
    return at::arange(rows, at::kLong).unsqueeze(1).expand({rows, t5_samples});
  };
  return {.tensors = {{"encoder_tokens", draw(source_rows)},
                      {"encoder_index", index(source_rows)},
                      {"encoder_length", at::full({t5_samples, 1}, 100, at::kLong)},
                      {"decoder_tokens", draw(target_rows)},
                      {"decoder_index", index(target_rows)},
                      {"labels", draw(target_rows)},
                      {"loss_mask", at::ones({target_rows, t5_samples})}},
          .sample_ids_B = at::arange(t5_samples, at::kLong)};
}

struct T5Bytes {
  double saved = 0.0, peak = 0.0;
};

// After a first step, which allocates gradients.
T5Bytes allocated(const T5Config& config) {
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  T5 model(config, {parameters, {.layers = config.encoder.layers + config.decoder.layers}, {}});
  const MicroBatch batch = wide_batch(config);
  const auto loss = [&] { return model.losses(model.forward({}, batch, nullptr), batch)[0].sum; };
  loss().backward();
  T5Bytes bytes;
  {
    // The last offloaded layers of a forward leave during the next one.
    const MemoryMeter meter;
    const at::Tensor earlier = loss();
    const int64_t before = meter.live();
    const at::Tensor total = loss();
    bytes.saved = static_cast<double>(meter.live() - before);
  }
  const MemoryMeter meter;
  loss().backward();
  bytes.peak = static_cast<double>(meter.peak());
  return bytes;
}

TEST(T5Operators, SaveWhatTheModelSaves) {
  at::set_num_threads(1);  // the tensors are tiny
  std::vector<T5Variant> variants = t5_variants();
  for (size_t i = 0, count = variants.size(); i < count; ++i) {
    T5Variant offloaded = variants[i];
    offloaded.name += ", offloaded";
    offloaded.config.encoder.offload = {.layers = 1, .min_bytes = 0};
    offloaded.config.decoder.offload = {.layers = 1, .min_bytes = 0};
    variants.push_back(offloaded);
  }
  for (const T5Variant& variant : variants) {
    const T5Config config = wide(variant.config);
    const T5Bytes real = allocated(config);
    const BatchSchema schema = t5_schema({.encoder_length = source_rows, .decoder_length = target_rows});
    const ActivationMemory ours = activation_memory(
        t5_operators(config, schema)({.batch = {t5_samples, source_rows}, .dtype = Dtype::f32, .gpu = false},
                                     {.layers = config.encoder.layers + config.decoder.layers}));
    EXPECT_NEAR(ours.saved / real.saved, 1.0, 0.005) << variant.name;
    EXPECT_NEAR(ours.peak / real.peak, 1.0, 0.05) << variant.name;
  }
}

}  // namespace
}  // namespace teratron
