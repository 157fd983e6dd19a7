// What MoE layers measure in a training step: sums over micro-batches, replicas and, of each token's rows,
// tensor-parallel ranks (AuxiliaryLosses::sums).
#pragma once

#include <cstdint>

namespace teratron {

/// Columns of a layer.
struct ExpertStatistics {
  enum Column : int64_t {
    microbatches,
    load_balancing_loss,  // of those losses that are in use, without their coefficients
    seq_load_balancing_loss,
    global_load_balancing_loss,
    z_loss,
    choices,  // tokens times experts per token
    dropped,  // of these
    loads,    // tokens that each expert processed
  };
  static int64_t columns(int64_t experts) { return loads + experts; }
};

}  // namespace teratron
