// Where adapters are in PEFT's files and in our checkpoints: shared by reading, writing and merging (peft.h).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/hf/lora_adapters.h"
#include "teratron/hf/weight_map.h"

namespace teratron::peft {

inline constexpr const char* config_file = "adapter_config.json";
inline constexpr const char* weight_file = "adapter_model.safetensors";
inline constexpr std::string_view prefix = "base_model.model.";

UserError refuse(std::string what, const std::filesystem::path& where, std::string fix);

/// "decoder.layers.0.mlp.linear_fc1" of its weight; "" of other tensors.
std::string layer_of(const HfTensor& tensor);
/// "model.layers.0.mlp.up_proj".
std::string module_of(const HfSource& source);

/// Which adapter of a weight each of its sources has: -1: none, -2: several, for parts of the source. As
/// lora_parts() of nn/lora.h.
struct SourceParts {
  std::vector<int64_t> part;
  int64_t count = 0;  // of adapters
};
SourceParts source_parts(const HfTensor& tensor, const std::vector<std::string>& targets);

/// A value that may be missing or null.
template <typename T>
T setting(const nlohmann::json& config, const char* name, const T& otherwise) {
  const auto found = config.find(name);
  return found == config.end() || found->is_null() ? otherwise : found->template get<T>();
}
/// From the settings of a checkpoint with adapters.
PeftConfig config_of(const nlohmann::json& settings);

/// A tensor of a checkpoint, in fp32.
std::vector<float> read_saved(const CheckpointSource& checkpoint, const std::string& name,
                              const TensorInfo& info);

}  // namespace teratron::peft
