// Element-wise reduction over the buffers of several ranks.
//
//   output[i] = op(inputs[0][i], inputs[1][i], ...)
//
// in this order, so that the result is the same on every rank and in every run. bf16 and f16 are accumulated
// in f32 and rounded once. Integer averages truncate; a NaN wins over any number in max and min.
#pragma once

#include <cstdint>
#include <span>

#include "teratron/base/dtype.h"

namespace teratron {

enum class ReduceOp : uint8_t { sum, avg, max, min };

/// Whether reduce() knows this type: f32, f64, bf16, f16, i64, i32, u8 and boolean (for which sum is "or").
bool can_reduce(Dtype dtype);

struct Reduction {
  Dtype dtype;
  ReduceOp op;
};

/// Reduces `count` elements that start at element `begin` of every input into `output` (its own element 0).
/// `output` may be one of the inputs at `begin`.
void reduce(Reduction reduction, std::span<const void* const> inputs, int64_t begin, int64_t count,
            void* output);

}  // namespace teratron
