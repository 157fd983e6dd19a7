// `--print-checkpoint-structure`: the tensors of a checkpoint of any format, in the form of transformers'
// conversion scripts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace teratron {

/// A line "# name : torch.Size([2, 3])" for each tensor; of Megatron-LM's files the whole tree of each rank,
/// where dots show the depth.
void print_checkpoint_structure(const std::filesystem::path& path, std::optional<int64_t> step);

}  // namespace teratron
