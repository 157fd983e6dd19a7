// A small GPT for tests.
#pragma once

#include "teratron/models/gpt/gpt_config.h"

namespace teratron {

/// Four layers with two query groups, learned positions and a padded vocabulary; no dropout.
inline GPTConfig small_config() {
  GPTConfig config{
      {.layers = 4, .hidden = 16, .ffn_hidden = 32, .heads = 4, .query_groups = 2, .kv_channels = 4}};
  config.vocabulary = 37;
  config.padded_vocabulary = 40;
  config.max_positions = 8;
  return config;
}

}  // namespace teratron
