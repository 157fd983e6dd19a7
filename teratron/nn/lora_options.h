// Which linear layers have LoRA adapters (nn/lora.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Consecutive rows of a weight that belong to one projection; the pattern repeats over its rows.
struct LinearPart {
  std::string name;  // "linear_q"
  int64_t rows = 0;
};

struct LoraOptions {
  int64_t rank = 0;
  double alpha = 0.0;
  double dropout = 0.0;
  /// Layers by the ends of their names: "linear_qkv", or projections of them: "linear_q". A layer that is
  /// named has one adapter for all its projections.
  std::vector<std::string> targets;
};

/// Whether the parameter is an adapter's.
inline bool is_lora(std::string_view name) {
  return name.ends_with(".lora_A") || name.ends_with(".lora_B");
}

}  // namespace teratron
