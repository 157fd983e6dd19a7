// The state of Megatron-LM's distributed optimizer: flat buffers that hold the parameters of a virtual stage
// one after the other, the last one first.
#pragma once

#include <memory>
#include <vector>

#include "teratron/megatron/optimizer/optimizer_state.h"

namespace teratron {

/// Of distrib_optim.pt: for each virtual stage the whole buffers, or a list of buckets of them, without what
/// pads them for the data-parallel ranks, or with it.
std::vector<std::vector<ParameterState>> read_flat_states(
    const std::shared_ptr<const TorchFile>& file,
    const std::vector<std::vector<SavedParameter>>& virtual_stages, const std::string& where);

/// Of the files optim.pt of all data-parallel ranks, which have equal parts of the padded buffers.
std::vector<std::vector<ParameterState>> read_sharded_states(
    const std::vector<std::shared_ptr<const TorchFile>>& files,
    const std::vector<std::vector<SavedParameter>>& virtual_stages, const std::string& where);

}  // namespace teratron
