// Relative position biases (Raffel et al. 2020): every head adds a learned number to the score of a query and
// a key, which depends on the bucket of their distance. All layers of a stack share them.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/nn/parallel_matmul.h"
#include "teratron/nn/parameter.h"

namespace teratron {

struct RelativePositions {
  int64_t buckets = 32;
  int64_t max_distance = 128;  // from here on all distances have the same bucket
  bool bidirectional = false;  // half of the buckets are for keys after the query; else they have bucket 0
};

/// Buckets of the distances 0, 1, ..., max_distance of keys before the query, computed in f32 as in T5. Of n
/// a direction, those below n / 2 have their own, the others one by their logarithm:
///   n/2 + floor(log(d / (n/2)) / log(max_distance / (n/2)) * n/2), at most n - 1.
std::vector<int64_t> distance_buckets(const RelativePositions& positions);

/// The columns of by_distance() that the last `queries` of `keys` tokens need, as in AttentionRequest.
at::Tensor narrow_bias(const at::Tensor& distance_bias, int64_t queries, int64_t keys);

class RelativePositionBias {
 public:
  struct Options {
    RelativePositions positions;
    int64_t heads = 0;
    Init init;
  };
  /// `weight` [buckets, heads], cut by heads over the tensor-parallel ranks.
  RelativePositionBias(const Scope& scope, const Options& options, const TensorParallel& parallel);
  /// [N, 2 * length - 1] biases of this rank's heads for the distances -(length - 1), ..., length - 1 of a
  /// key from the query, in the dtype of gradients. On the device; can be captured in a CUDA graph.
  at::Tensor by_distance(int64_t length);

 private:
  at::Tensor buckets_of(int64_t length) const;

  RelativePositions positions_;
  at::Tensor bounds_;  // of the distance, where the next bucket begins
  Parameter* weight_;
};

}  // namespace teratron
