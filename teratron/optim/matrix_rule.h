// An optimizer rule whose unit is a whole matrix, as Muon's.
//
// The distributed optimizer gives each matrix to one data-parallel rank (optim/bucket_layout.h). With tensor
// parallelism a rank has a shard of the matrix. The rule gets this shard, its description, and the group of
// ranks that hold the others. It may reduce over the group, as for a norm, or gather the full matrix. All
// ranks of the group step the same parameters in the same order.
#pragma once

#include <vector>

#include "teratron/optim/optimizer_rule.h"

namespace teratron {

/// The ranks that hold the parts of a tensor-parallel parameter, by Shard::index. One rank if it is whole.
Group ranks_of_parts(const Parameter& parameter, const Mesh& mesh);

class MatrixRule : public OptimizerRule {
 public:
  /// All tensors have the shape of parameter.tensor and are not to be written: fp32, or fp64 in fp64 models.
  struct Matrix {
    const Parameter& parameter;
    at::Tensor grad;                 // unscaled and clipped
    std::vector<at::Tensor> states;  // in the order of states()
    const Group& parts;              // ranks_of_parts(); parameter.shard() says which part is here
  };
  struct Update {
    at::Tensor direction;
    std::vector<at::Tensor> states;  // the next ones
  };

  Unit unit() const final { return Unit::matrix; }
  void step(const Slice& slice, const StepScalars& scalars) const final;

 protected:
  /// The step is p <- p (1 - lr wd) - lr direction, in master weights. If a gradient is Inf or NaN, the
  /// result is dropped. Called without autograd.
  virtual Update update(const Matrix& matrix) const = 0;
};

}  // namespace teratron
