// `teratron ckpt convert`: from Hugging Face, Megatron-LM or a checkpoint of ours, into any of them.
// Accelerate's tool is called with the same flags: --load_path, --save_path...
#pragma once

#include <span>
#include <string>

namespace teratron {

int convert_command(std::span<const std::string> args);

}  // namespace teratron
