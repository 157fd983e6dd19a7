// Activation recomputation (Chen et al. 2016; selective: Korthikanti et al. 2022): forward saves only the
// inputs of a function, and backward runs it again.
//
// Dropout masks are regenerated (they depend on seed, site and position), so loss and gradients are bitwise
// those without recomputation if the function itself is reproducible.
#pragma once

#include <functional>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// A pure function of its inputs and of parameters. It runs once in forward and once in backward, and must
/// own everything else it uses.
using RecomputeFunction = std::function<at::Tensor(at::TensorList inputs)>;

struct RecomputeOptions {
  /// All parameters that the function uses. Their gradients are pending from the forward pass on, so that the
  /// gradient buffer counts the same uses with and without recomputation.
  std::vector<Parameter*> parameters;
  /// The first input is the same on every rank of this group: each saves its shard along dimension 0, which
  /// must be divisible, and backward gathers it. A group of one saves it whole. Other inputs are saved whole:
  /// the calls of a model share them.
  Group shared_by;
};

/// function(inputs), which is simply called if no gradient is needed.
at::Tensor recompute(const RecomputeFunction& function, const std::vector<at::Tensor>& inputs,
                     const RecomputeOptions& options);

}  // namespace teratron
