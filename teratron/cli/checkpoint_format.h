// Formats of checkpoints, told apart by their files.
#pragma once

#include <cstdint>
#include <filesystem>

namespace teratron {

enum class CheckpointFormat : uint8_t { teratron, hugging_face, megatron };

/// Of a folder of checkpoints, one checkpoint or, of Megatron-LM, one file. UserError(checkpoint) if it is of
/// none of them.
CheckpointFormat checkpoint_format(const std::filesystem::path& path);

}  // namespace teratron
