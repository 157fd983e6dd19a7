// Rotary position embedding (Su et al. 2021).
#pragma once

#include <limits>
#include <vector>

#include "teratron/kernels/attention/qkv.h"

namespace teratron {

/// YaRN (Peng et al. 2023): channels that turn fewer than `beta_slow` times over `positions` are interpolated
/// by `factor`, those that turn more than `beta_fast` times are unchanged, with a linear ramp over the
/// channels in between.
struct Yarn {
  double factor = 0.0;  // 0: none
  double positions = 4096.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool whole_channels = true;  // the ramp begins and ends at whole channels
  /// Queries and keys are multiplied by m(mscale) / m(mscale_all_dim), m(s) = 0.1 s ln(factor) + 1.
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
};

/// LongRoPE (Ding et al. 2024; Phi-3): frequency i is divided by factor i of one of two lists.
struct LongRope {
  // One for each rotated pair; empty: none. `short_factors` are those of texts of up to `positions` tokens.
  std::vector<double> short_factors, long_factors;
  int64_t positions = 4096;
  double magnitude = 1.0;  // queries and keys are multiplied by this
};

struct RotaryConfig {
  double base = 10000.0;
  double percent = 1.0;  // rotated fraction of the head width
  bool interleaved = false;
  bool reversed = false;       // by negative angles
  double interpolation = 1.0;  // positions are divided by this (Chen et al. 2023)
  /// Llama 3's frequency scaling; 0: none. Wavelengths above `llama3_positions` are stretched by this factor,
  /// those below a quarter of it are unchanged, with linear interpolation in between.
  double llama3_factor = 0.0;
  double llama3_positions = 8192.0;
  double llama3_high = 4.0;  // in place of the quarter's 4; 1: nothing lies in between
  Yarn yarn;
  LongRope longrope;
};

/// A table of the angles of all positions up to a limit.
class RotaryEmbedding {
 public:
  struct Options {
    RotaryConfig config;
    int64_t head_width = 0;
    int64_t positions = 0;  // rows of the table
  };
  /// theta(position, i) = position / interpolation * base^(-2 i / rotated), rotated = percent * head_width,
  /// computed in fp64, with the scalings of Llama 3, YaRN and LongRoPE. The table is fp64 for fp64 models,
  /// else fp32. With LongRoPE it has the rows of all positions twice, those of long texts second.
  RotaryEmbedding(const Options& options, const at::TensorOptions& model);
  /// Rows of the table for the positions of a text of so many tokens.
  at::Tensor rows(const at::Tensor& positions_SB, int64_t tokens) const {
    return tokens > longest_short_ ? positions_SB + positions_ : positions_SB;
  }
  /// The positions of rows.
  at::Tensor positions(const at::Tensor& rows_SB) const {
    return rows_by_length() ? rows_SB.remainder(positions_) : rows_SB;
  }
  /// Whether rows() depend on the length.
  bool rows_by_length() const { return longest_short_ != std::numeric_limits<int64_t>::max(); }
  /// x [S, B, N, D] or [S, B, G, N, D] rotated by the angles of positions [S, B]. Differentiable.
  at::Tensor apply(const at::Tensor& x, const at::Tensor& positions_SB) const;

  // Without autograd, for custom functions; x as for apply(), with contiguous channels.
  void rotate_(const at::Tensor& x, const at::Tensor& positions_SB) const;
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions_SB) const;
  /// The rotation of queries and keys at these positions.
  QkvRotation rotation(const at::Tensor& positions_SB) const { return {table_, style_, positions_SB}; }

 private:
  RopeTable table_;
  RopeStyle style_;
  int64_t positions_;
  int64_t longest_short_;  // texts up to this length have the first rows
};

}  // namespace teratron
