// Formats of checkpoints, told apart by their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace teratron {

enum class CheckpointFormat : uint8_t { teratron, hugging_face, megatron };

/// Of a folder of checkpoints, one checkpoint or, of Megatron-LM, one file. UserError(checkpoint) if it is of
/// none of them.
CheckpointFormat checkpoint_format(const std::filesystem::path& path);

/// Whether a folder is one of Hugging Face, and none of checkpoints.
bool is_hugging_face(const std::filesystem::path& path);

/// The checkpoint of ours in a folder, of iteration `step` or the newest; UserError(checkpoint) if there is
/// none.
std::filesystem::path locate_checkpoint(const std::filesystem::path& directory, std::optional<int64_t> step);

}  // namespace teratron
