// `teratron ckpt merge-lora`: adds LoRA adapters to the weights beside which they were trained.
#pragma once

#include <span>
#include <string>

namespace teratron {

int merge_lora_command(std::span<const std::string> args);

}  // namespace teratron
