// Query-key normalization (Henry et al. 2020): norms of the queries or of the keys of an attention layer.
#pragma once

#include <memory>

#include "teratron/nn/norm.h"

namespace teratron {

/// What is normalized, and by which weights.
enum class HeadNormKind : uint8_t {
  each_head,   // each head by itself, with one weight for all of them
  own_weight,  // each head by itself, with a weight of its channels (Command R); no bias
  all_heads    // all heads together, RMS (OLMo 2): ranks exchange one number per token
};

struct HeadNormOptions {
  NormOptions norm;
  int64_t heads = 0;  // of all ranks; fewer than ranks: each is on several
  int64_t width = 0;  // of a head
  HeadNormKind kind = HeadNormKind::each_head;
  NormWeights weights = NormWeights::all;  // of each_head
};

class HeadNorm {
 public:
  virtual ~HeadNorm() = default;
  /// x [S, B, N, D] of this rank's heads -> the same shape.
  virtual at::Tensor forward(const at::Tensor& x_SBND) = 0;
};

/// `group`: the ranks that the heads are cut over.
std::unique_ptr<HeadNorm> make_head_norm(const Scope& scope, const HeadNormOptions& options,
                                         const Group& group);

}  // namespace teratron
