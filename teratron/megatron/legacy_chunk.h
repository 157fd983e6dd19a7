// The tensors of a virtual stage in a file of Megatron-LM, with those of experts apart.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "teratron/megatron/optimizer/optimizer_state.h"

namespace teratron {

/// A virtual stage of a file.
struct LegacyChunk {
  std::vector<SavedParameter> parameters;  // in the order of the model's
  std::map<std::string, size_t> by_path;
  std::vector<ParameterState> states = {};  // empty: none
  bool reordered = false;                   // experts are not in the order of the file

  void add(const std::string& path, TensorSourcePtr weight) {
    by_path[path] = parameters.size();
    const std::vector<int64_t> shape = weight->shape();
    const bool embedding = path.find("embedding") != std::string::npos || path.starts_with("output_layer.") ||
                           path.find(".output_layer.") != std::string::npos;
    parameters.push_back({.path = path, .shape = shape, .weight = std::move(weight), .decoupled = embedding});
  }
};

/// One tensor per expert, where a rank has them in `mlp.experts.weight1` and `weight2`. UserError(checkpoint)
/// with `where` if these do not hold the router's experts.
LegacyChunk with_single_experts(LegacyChunk chunk, int64_t expert_ranks, const std::string& where);

/// Adds the experts of expert rank `rank` to those of the ranks before it, and numbers them after these.
void add_experts(const LegacyChunk& from, int64_t rank, const std::string& where, LegacyChunk& chunk);

}  // namespace teratron
