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
  std::vector<SavedParameter> parameters;  // in the order of the model's, with its buffers
  std::map<std::string, size_t> by_path;
  std::vector<ParameterState> states = {};  // of each; empty: none is known

  void add(const std::string& path, TensorSourcePtr weight) {
    by_path[path] = parameters.size();
    parameters.push_back({{.path = path,
                           .shape = weight->shape(),
                           .decoupled = is_embedding_or_output(path),
                           .expert = path.find("mlp.experts.") != path.npos},
                          std::move(weight)});
  }
  void add(const std::string& path, TensorSourcePtr weight, ParameterState state) {
    add(path, std::move(weight));
    states.push_back(std::move(state));
  }
};

/// One tensor per expert, and one state, where a rank has them in `mlp.experts.weight1` and `weight2`.
/// UserError(checkpoint) with `where` if these do not hold the router's experts.
LegacyChunk with_single_experts(LegacyChunk chunk, int64_t expert_ranks, const std::string& where);

/// Adds the experts of expert rank `rank`, with their states, to those of the ranks before it, and numbers
/// them after these.
void add_experts(const LegacyChunk& from, int64_t rank, const std::string& where, LegacyChunk& chunk);

}  // namespace teratron
