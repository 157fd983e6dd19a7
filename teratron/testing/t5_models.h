// Small T5s for layout tests.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "teratron/models/t5/t5_config.h"
#include "teratron/testing/layouts.h"

namespace teratron {

/// Two layers of an encoder and four of a decoder, without dropout.
T5Config small_t5_config();
/// T5 as published: relative positions, RMSNorm, ReLU, no biases, unscaled scores, scaled logits.
T5Config published_t5_config();
struct T5Variant {
  std::string name;
  T5Config config;
};
/// Megatron-LM's T5, and further options.
std::vector<T5Variant> t5_variants();
/// A random combination of options.
T5Config random_t5_config(std::mt19937& random);

/// Rows of 12 tokens, the last up to 3 of them padding, for the encoder, and of 8 for the decoder.
MicroBatch t5_batch(const T5Config& config, int64_t step, FlatRange samples);
/// A layout that fits, some with separate stages for encoder and decoder.
Layout random_t5_layout(const T5Config& config, std::mt19937& random, int64_t ranks);

TestModel t5_model(const T5Config& config);

}  // namespace teratron
