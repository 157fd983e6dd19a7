// Activation recomputation (Chen et al. 2016; selective: Korthikanti et al. 2022): a part of the forward pass
// keeps its inputs alone and is computed once more when backward needs what lies between.
//
// Dropout draws the same masks again (they follow from seed, place and position), so loss and gradients are
// bitwise those without recomputation wherever the region itself is reproducible.
#pragma once

#include <functional>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// A pure function of its inputs and of parameters. It is called once in forward and once in backward, and
/// must own whatever else it needs.
using Region = std::function<at::Tensor(at::TensorList inputs)>;

struct RecomputeOptions {
  /// All parameters that the region uses. Their gradients are expected from the forward pass on, so that the
  /// gradient buffer counts the same uses with recomputation and without.
  std::vector<Parameter*> parameters;
  /// Inputs are the same on every rank of this group: each keeps its part along dimension 0, which must be
  /// divisible, and backward gathers it again. A group of one keeps them whole.
  Group shared_by;
};

/// region(inputs). Without gradients, or when no input needs one, it is just called.
at::Tensor recompute(const Region& region, const std::vector<at::Tensor>& inputs,
                     const RecomputeOptions& options);

}  // namespace teratron
