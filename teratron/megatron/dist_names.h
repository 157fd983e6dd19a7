// Names of tensors in checkpoints of format `torch_dist`, for reading and for writing.
//
// Layers of equal shapes are one tensor, "decoder.layers.mlp.linear_fc1.weight" [layers, ...]; others have
// their number in their name. The experts of a layer are one tensor, too, to core 0.14:
// "decoder.layers.mlp.experts.experts.linear_fc1.weight" [layers, experts, ...].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace teratron {

/// "decoder.layers.3.mlp..." as "decoder.layers.", "mlp..." and the number; -1 if all layers are one tensor.
struct LayerKey {
  std::string stack;
  std::string rest;
  int64_t number = -1;
  std::string within = {};  // "mtp_model_layer." before the rest

  std::string layer() const { return stack + std::to_string(number) + "." + within; }
};
/// Nullopt for what is not a layer's.
std::optional<LayerKey> layer_key(const std::string& key);

/// "mlp.experts.experts.linear_fc1.weight", the experts of a layer.
inline constexpr std::string_view experts_of_layer = "mlp.experts.experts.";
/// This tensor of one expert, by our names: "mlp.experts.3.linear_fc1.weight".
std::string name_of_expert(std::string_view rest, int64_t expert);

/// Adam's states and fp32 weights: Megatron-LM's prefix, and the name here.
std::vector<std::pair<std::string, std::string>> dist_state_kinds();

}  // namespace teratron
