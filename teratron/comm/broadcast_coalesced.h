// Broadcasts several tensors in one message: under tensor parallelism only the group's first rank reads the
// dataset, and a batch is a handful of small tensors.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

/// Returns the tensors of the group's rank 0 on every rank. Shapes, dtypes and device must be the same on all
/// ranks; the values on the other ranks are ignored. Rank 0 gets its own tensors back, the others views of
/// one buffer.
std::vector<at::Tensor> broadcast_coalesced(std::vector<at::Tensor> tensors, const Group& group);

}  // namespace teratron
