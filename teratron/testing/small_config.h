// A small GPT for tests.
#pragma once

#include "teratron/models/transformer/config.h"

namespace teratron {

/// Four layers with two query groups, learned positions and a padded vocabulary; no dropout.
inline GPTConfig small_config() {
  return {.layers = 4,
          .hidden = 16,
          .ffn_hidden = 32,
          .heads = 4,
          .query_groups = 2,
          .kv_channels = 4,
          .vocabulary = 37,
          .padded_vocabulary = 40,
          .max_positions = 8};
}

}  // namespace teratron
