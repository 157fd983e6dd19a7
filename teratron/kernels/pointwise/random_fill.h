// Counter-based initialization: every value depends only on (seed, tensor id, global element index), see
// base/philox.h. CPU and GPU write bitwise the same f32 values; other dtypes are those values rounded.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/base/philox.h"
#include "teratron/base/shard.h"

namespace teratron {

/// normal: offset + scale * N(0, 1).  uniform: offset + scale * U(-1, 1).
enum class Distribution : uint8_t { normal, uniform };

struct RandomFill {
  RandomKey key;
  Distribution distribution = Distribution::normal;
  double offset = 0;
  double scale = 1;
};

/// Fills `x` [box.size...] (any strides; f32, bf16, f16, f64) with the part `box` of the global tensor of
/// shape `global_shape`, whose elements are numbered row-major. Asynchronous on the current CUDA stream.
void random_fill_(const at::Tensor& x, const Box& box, const std::vector<int64_t>& global_shape,
                  const RandomFill& fill);

/// Fills the local shard of a parameter: every piece of `shard`; its padding becomes zero.
void random_fill_(const at::Tensor& local, const Shard& shard, const RandomFill& fill);

}  // namespace teratron
