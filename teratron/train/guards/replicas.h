// Check that replicated weights are equal (--check-weight-hash-across-dp-replicas-interval).
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// Compares a hash of every parameter over the data-parallel ranks, and of every unsharded parameter over the
/// tensor-parallel ranks. A difference is a Fault (numerics) on every rank, naming the rank and the tensor.
/// Waits for the device. Collective over the mesh.
void check_replicas(const ParameterSet& parameters, const Mesh& mesh);

}  // namespace teratron
