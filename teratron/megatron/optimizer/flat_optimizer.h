// The state of Megatron-LM's distributed optimizer: flat buffers that hold the parameters of a virtual stage
// one after the other, the last one first.
#pragma once

#include <memory>
#include <vector>

#include "teratron/megatron/optimizer/optimizer_state.h"

namespace teratron {

/// The states in distrib_optim.pt. For each virtual stage it has whole buffers or lists of buckets, with or
/// without padding for the data-parallel ranks.
std::vector<std::vector<ParameterState>> read_flat_states(
    const std::shared_ptr<const TorchFile>& file,
    const std::vector<std::vector<SavedParameter>>& virtual_stages, const std::string& where);

/// The states in the files optim.pt of all data-parallel ranks, which hold equal parts of padded buffers.
std::vector<std::vector<ParameterState>> read_sharded_states(
    const std::vector<std::shared_ptr<const TorchFile>>& files,
    const std::vector<std::vector<SavedParameter>>& virtual_stages, const std::string& where);

}  // namespace teratron
