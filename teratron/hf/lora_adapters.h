// LoRA adapters in memory, and their settings.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace teratron {

struct PeftConfig {
  int64_t rank = 0;
  double alpha = 0.0;  // the update is scaled by alpha / rank
  double dropout = 0.0;
  std::vector<std::string> targets;  // Megatron-LM's names of the layers or projections: "linear_q"
};

/// An adapter of one of our weights, in fp32.
struct LoraWeights {
  std::vector<int64_t> shape_a, shape_b;
  std::vector<float> a, b;
  std::vector<int64_t> part_of_row;  // which of the A's; -1: none
  double scale = 1.0;
};
/// By the name of our layer: "decoder.layers.0.self_attention.linear_qkv".
using LoraAdapters = std::map<std::string, LoraWeights>;

}  // namespace teratron
