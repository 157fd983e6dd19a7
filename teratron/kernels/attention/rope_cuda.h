// Launcher of rope.h. Raw device pointers.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

namespace teratron::cuda {

/// Heads are numbered n = outer * inner_heads + inner, [S, B, outer, inner, D]; strides in elements.
struct RopeStrides {
  int64_t s, b, outer, inner;
};

/// rotated = 0 copies.
struct RopeArgs {
  const void* in;
  void* out;  // may be `in`, with its strides
  RopeStrides in_strides, out_strides;
  const void *cos, *sin;  // f32 [P, rotated / 2]
  const int64_t* positions;
  int64_t position_stride_s, position_stride_b;
  int64_t length, batch, outer, inner, channels, rotated;
  Dtype dtype;
  bool interleaved;
  bool inverse;
};
void rope(const RopeArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
