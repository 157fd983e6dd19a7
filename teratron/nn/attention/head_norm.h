// Query-key normalization (Henry et al. 2020): norms of the queries or of the keys of an attention layer.
#pragma once

#include <memory>

#include "teratron/nn/norm.h"

namespace teratron {

struct HeadNormOptions {
  NormOptions norm;
  int64_t heads = 0;  // of all ranks; fewer than ranks: each is on several
  int64_t width = 0;  // of a head
};

class HeadNorm {
 public:
  virtual ~HeadNorm() = default;
  /// x [S, B, N, D] of this rank's heads -> the same shape.
  virtual at::Tensor forward(const at::Tensor& x_SBND) = 0;
};

/// Each head by itself, with one weight for all of them; or, with `all_heads`, the RMS norm of all heads
/// together (OLMo 2), which the ranks of `group` compute with one number per token from each.
std::unique_ptr<HeadNorm> make_head_norm(const Scope& scope, const HeadNormOptions& options,
                                         const Group& group, bool all_heads);

}  // namespace teratron
