// Conversion between F64, F32, BF16 and F16 without torch: rounds to nearest, ties to even (F64 through F32);
// NaN stays NaN, values out of range become infinity.
#pragma once

#include <vector>

#include "teratron/base/dtype.h"

namespace teratron {

bool is_convertible_float(Dtype dtype);

/// An array of a convertible float as another.
std::vector<char> convert_floats(std::vector<char> values, Dtype from, Dtype to);

}  // namespace teratron
