// Formats of checkpoints, told apart by their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace teratron {

enum class CheckpointFormat : uint8_t { teratron, hugging_face, megatron };

/// Format of a folder of checkpoints, of one checkpoint, or of one file of Megatron-LM. UserError(checkpoint)
/// if it is none of them.
CheckpointFormat checkpoint_format(const std::filesystem::path& path);

/// Nullopt in place of the error.
std::optional<CheckpointFormat> recognized_format(const std::filesystem::path& path);

/// Whether the folder or file is one of Megatron-LM's.
bool is_megatron(const std::filesystem::path& source);

/// Whether a folder is one of Hugging Face, and none of checkpoints.
bool is_hugging_face(const std::filesystem::path& path);

/// The checkpoint of ours in a folder, of iteration `step` or the newest; UserError(checkpoint) if there is
/// none.
std::filesystem::path locate_checkpoint(const std::filesystem::path& directory, std::optional<int64_t> step);

}  // namespace teratron
