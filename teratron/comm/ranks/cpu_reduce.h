// Element-wise reduction over the buffers of several ranks.
//
//   output[i] = op(inputs[0][i], inputs[1][i], ...)
//
// in this order: the result is identical on every rank and in every run. bf16 and f16 accumulate in f32 and
// are rounded once. Integer averages truncate; max and min propagate NaN.
#pragma once

#include <cstdint>
#include <span>

#include "teratron/base/dtype.h"

namespace teratron {

enum class ReduceOp : uint8_t { sum, avg, max, min };

/// Whether reduce() supports this type: f32, f64, bf16, f16, i64, i32, u8, and boolean (sum is "or").
bool can_reduce(Dtype dtype);

struct Reduction {
  Dtype dtype;
  ReduceOp op;
};

/// Reduces elements [begin, begin + count) of every input into output[0, count). `output` may alias an input
/// at `begin`.
void reduce(Reduction reduction, std::span<const void* const> inputs, int64_t begin, int64_t count,
            void* output);

}  // namespace teratron
