// Conversion between F64, F32, BF16 and F16 without torch: rounds to nearest, ties to even (F64 through F32);
// NaN stays NaN, values out of range become infinity.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

namespace teratron {

bool is_convertible_float(Dtype dtype);

/// `count` elements; both types must be convertible floats. The buffers must not overlap.
void convert_floats(Dtype from, const void* source, Dtype to, void* target, int64_t count);

}  // namespace teratron
