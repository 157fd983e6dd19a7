// A checkpoint of Megatron-LM in format `torch_dist`.
//
//   iter_0000050/metadata.json   names the format; written last
//   iter_0000050/.metadata       tensors, chunks, places (dist_metadata.h)
//   iter_0000050/__0_1.distcp    their contents
//   iter_0000050/common.pt       arguments and counters; in later releases the item "common_state"
//
// Layers of equal shapes are one tensor, "decoder.layers.mlp.linear_fc1.weight" [layers, ...]; others have
// their number in their name.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "teratron/megatron/checkpoint.h"

namespace teratron {

/// The folder of an iteration in this format that `source` is or contains, as open_megatron_checkpoint() has
/// it; nullopt if there is none.
std::optional<std::filesystem::path> find_dist_folder(const std::filesystem::path& source,
                                                      std::optional<int64_t> step);

std::unique_ptr<MegatronCheckpoint> open_dist_checkpoint(const std::filesystem::path& folder,
                                                         bool with_optimizer);

}  // namespace teratron
