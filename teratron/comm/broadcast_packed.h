// Several tensors from one rank to its group in a single message: under tensor parallelism only the first
// rank reads the data set, and a batch is a handful of small tensors.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

/// Returns the tensors of rank 0 of the group on every rank. Shapes, element types and device must be the
/// same on all ranks; what the other ranks' tensors hold is not read. Rank 0 gets its own tensors back; the
/// others get views of one common buffer.
std::vector<at::Tensor> broadcast_packed(std::vector<at::Tensor> tensors, const Group& group);

}  // namespace teratron
