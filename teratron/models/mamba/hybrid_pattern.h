// The layers of a hybrid model, one letter each: Megatron-LM's --hybrid-layer-pattern.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

namespace hybrid {
inline constexpr char mamba = 'M', delta = 'G', attention = '*', mlp = '-', experts = 'E';
/// Mamba-2 and attention side by side, of one normalized input (Falcon-H1).
inline constexpr char both = 'H';
}  // namespace hybrid

struct HybridPattern {
  std::string layers = {};  // "M-M*"
  /// Layers of each (virtual) pipeline stage, where bars divide the pattern; else empty.
  std::vector<int64_t> segments = {};
  std::vector<Problem> problems = {};  // of the text; `where` is left to the caller

  bool has(char kind) const { return layers.find(kind) != std::string::npos; }
};

HybridPattern parse_hybrid_pattern(std::string_view text);

/// Whether layers of these letters have attention, or Mamba-2.
bool has_attention(std::string_view layers);
bool has_mamba(std::string_view layers);

/// Parts of the layers that are attention or MLPs.
struct HybridRatios {
  double attention = 0.0;
  double mlp = 0.0;

  int64_t attention_layers(int64_t layers) const;
  int64_t mlp_layers(int64_t layers) const;
};
/// Attention layers evenly between the others, then MLPs evenly in place of Mamba layers.
std::string hybrid_layers(int64_t layers, const HybridRatios& ratios);

}  // namespace teratron
