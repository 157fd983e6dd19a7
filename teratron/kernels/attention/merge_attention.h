// Merges attention to parts of the keys by the log-sum-exp of the parts' scores:
//
//   L = log sum_i exp(l_i),   y = sum_i exp(l_i - L) y_i
//
// Sums are in fp32 (fp64), and y is rounded once. Queries without keys in a part have l_i = -inf or +inf
// there (which library kernels differ in), and y_i is not read as a number; without keys in all parts, y = 0
// and L = -inf.
//
// Shapes: y_i [S, B, N, D], any strides with contiguous channels; bf16, f16, f32 or f64 as the queries, or
// f32. l_i [B, N, S], any strides, f32 (f64). CUDA: one pass over up to 4 parts, asynchronous on the current
// stream.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

struct AttentionPart {
  at::Tensor y_SBND;
  at::Tensor logsumexp_BNS;
  int64_t first_query = 0;  // the part has the queries from this one on
};

class AttentionMerge {
 public:
  /// Outputs have the queries' shape and dtype.
  explicit AttentionMerge(const at::Tensor& q_SBND) : q_SBND_(q_SBND) {}
  void add(const AttentionPart& part);
  /// Merges all parts, at least one. y is contiguous.
  AttentionPart result();

 private:
  at::Tensor q_SBND_;
  std::vector<AttentionPart> parts_;
};

}  // namespace teratron
