// Conversion between the floating-point types of files, without torch: F64, F32, BF16 and F16. Values are
// rounded to nearest, ties to even (F64 by way of F32); NaN stays NaN, what is too large becomes infinity.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

namespace teratron {

bool is_convertible_float(Dtype dtype);

/// `count` elements; both types must be convertible floats. The buffers must not overlap.
void convert_floats(Dtype from, const void* source, Dtype to, void* target, int64_t count);

}  // namespace teratron
