// What a GPT is made of, as numbers.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/kernels/activation.h"
#include "teratron/kernels/norm.h"
#include "teratron/nn/rope.h"

namespace teratron {

enum class PositionEmbedding : uint8_t { learned_absolute, rope, none };

struct GPTConfig {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t ffn_hidden = 0;
  int64_t heads = 0;
  int64_t query_groups = 0;       // key/value heads; = heads without grouped queries
  int64_t kv_channels = 0;        // width of a head
  int64_t vocabulary = 0;         // logical size
  int64_t padded_vocabulary = 0;  // what the embedding holds
  int64_t max_positions = 0;
  PositionEmbedding position = PositionEmbedding::learned_absolute;
  RotaryConfig rope;
  NormOptions norm;
  Activation activation = Activation::gelu;
  bool linear_bias = true;
  bool qkv_bias = false;  // bias of the QKV projection alone
  bool tied_embeddings = true;
  double init_std = 0.02;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  uint64_t dropout_seed = 1234;
};

}  // namespace teratron
