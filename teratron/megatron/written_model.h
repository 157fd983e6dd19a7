// A model to write as one of Megatron-LM's: under which names, on which ranks. export/legacy_tree.h and
// export/core_tree.h say which tensors a rank saves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/megatron/names.h"

namespace teratron {

enum class MegatronNames : uint8_t {
  legacy_core,  // "input_norm", with the entries "_extra_state" of core 0.4 to 0.7
  legacy_v2,    // "input_layernorm", as v2.5 to 23.06 have it, and as all later releases read it
  core,         // Megatron-Core's GPT with its own layers, experts in a sequence
  core_te,      // the same with Transformer Engine's layers, experts in grouped GEMMs
};

constexpr bool is_core(MegatronNames names) {
  return names == MegatronNames::core || names == MegatronNames::core_te;
}

/// One entry of the innermost dicts: `path` are the keys of the dicts around it.
struct MegatronEntry {
  std::vector<std::string> path;
  std::string key;
  std::string tensor;  // our name; empty: None
};

/// What the stages of a pipeline hold.
struct MegatronStages {
  int64_t stages = 1;
  /// With two stacks: the stages before this one have the first, the others the second. One stage has both.
  int64_t split = 0;
  std::vector<int64_t> layers = {};  // of each stack

  /// The first stage that does not have the first stack.
  int64_t first_end() const { return layers.size() > 1 && stages > 1 ? split : stages; }
};

/// UserError(config) if Megatron-LM cannot divide the layers among the stages, which get equal numbers.
MegatronStages megatron_stages(const MegatronModel& model, const std::map<std::string, TensorInfo>& tensors,
                               int64_t stages);

/// A model to write.
struct WrittenModel {
  const MegatronModel* model = nullptr;
  MegatronNames names = MegatronNames::legacy_core;
  MegatronStages stages;
  const std::map<std::string, TensorInfo>* tensors = nullptr;  // by our names
  int64_t expert_ranks = 1;
};

}  // namespace teratron
