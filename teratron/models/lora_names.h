// Names of the linear layers that can have LoRA adapters.
#pragma once

#include <string>
#include <string_view>

namespace teratron {

/// Megatron-LM's name of a layer, or of a projection in it, from its own or from the end of a module's name
/// in transformers: "linear_q" of "q_proj", "linear_proj" of "attention.output.dense". "": unknown.
std::string lora_target(std::string_view module);

/// Whether the last parts of a name, divided by dots, are `end`.
bool ends_as_module(std::string_view name, std::string_view end);

}  // namespace teratron
