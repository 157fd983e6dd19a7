// A small GPT for tests.
#pragma once

#include "teratron/comm/mesh/rank_grid.h"
#include "teratron/models/gpt/gpt_config.h"

namespace teratron {

/// Four layers with two query groups, learned positions and a padded vocabulary; no dropout.
inline GPTConfig small_config() {
  GPTConfig config{
      {{.layers = 4, .hidden = 16, .ffn_hidden = 32, .heads = 4, .query_groups = 2, .kv_channels = 4}}};
  config.vocabulary = 37;
  config.padded_vocabulary = 40;
  config.max_positions = 8;
  return config;
}

/// With experts in all layers but the first, beside shared ones, and biases.
inline GPTConfig small_expert_config() {
  GPTConfig config = small_config();
  config.init_std = 0.3;
  config.experts.layers = {0, 1, 1, 1};
  MoeOptions& moe = config.experts.options;
  moe.router.experts = moe.experts.experts = 4;
  moe.router.routing.topk = 2;
  moe.router.bias = moe.experts.bias = true;
  moe.experts.ffn_hidden = 12;
  moe.shared = {.mlp = {.ffn_hidden = 8}};
  return config;
}

/// Layouts in which ranks share its experts.
inline std::vector<MeshOptions> expert_layouts() {
  return {{.ep = 2, .dp = 2},         {.ep = 2, .etp = 2, .dp = 4}, {.tp = 2, .ep = 2},
          {.tp = 2, .etp = 2},        {.tp = 2, .ep = 4, .dp = 2},  {.tp = 2, .pp = 2, .ep = 2},
          {.pp = 2, .ep = 2, .dp = 2}};
}

}  // namespace teratron
