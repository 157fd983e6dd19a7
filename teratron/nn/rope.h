// Rotary position embedding (Su et al. 2021).
#pragma once

#include "teratron/kernels/rope.h"

namespace teratron {

struct RotaryConfig {
  double base = 10000.0;
  double percent = 1.0;  // share of each head's width that is rotated
  bool interleaved = false;
};

/// The angles of every position up to a limit, and their use.
class RotaryEmbedding {
 public:
  struct Options {
    RotaryConfig config;
    int64_t head_width = 0;
    int64_t positions = 0;  // rows of the table
  };
  /// theta(position, i) = position * base^(-2 i / rotated), rotated = percent * head_width; computed in fp64.
  /// The table is fp64 for fp64 models, else fp32.
  RotaryEmbedding(const Options& options, const at::TensorOptions& model);
  /// x [S, B, N, D] or [S, B, G, N, D] rotated by the angles of positions [S, B]. Differentiable.
  at::Tensor apply(const at::Tensor& x, const at::Tensor& positions_SB) const;

 private:
  RopeTable table_;
  RopeStyle style_;
};

}  // namespace teratron
