// Check that replicated weights are equal (--check-weight-hash-across-dp-replicas-interval).
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// Compares a hash of every parameter over the ranks that it is replicated over, of every unsharded one also
/// over the tensor-parallel ranks, and of buffers over both. A difference is a Fault (numerics) on every
/// rank, naming the ranks and the tensor. Waits for the device. Collective over the mesh.
void check_replicas(ParameterSet& parameters, const Mesh& mesh);

}  // namespace teratron
