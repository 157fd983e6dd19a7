// `teratron data image`: images as the tensors that a vision model takes.
#pragma once

#include <span>
#include <string>

namespace teratron {

/// data image FILE... --hf DIR --output OUT.safetensors: pixel_values of all files, of Qwen's processors also
/// image_grid_thw. Nothing is written if a file is bad.
int image_command(std::span<const std::string> args);

}  // namespace teratron
