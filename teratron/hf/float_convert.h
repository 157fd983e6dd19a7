// Conversion between F64, F32, BF16 and F16 without torch: rounds to nearest, ties to even (F64 through F32);
// NaN stays NaN, values out of range become infinity.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/base/dtype.h"

namespace teratron {

bool is_convertible_float(Dtype dtype);

/// In place: the memory has room for `count` values of either type.
void convert_floats(void* values, int64_t count, Dtype from, Dtype to);
/// An array of a convertible float as another.
std::vector<char> convert_floats(std::vector<char> values, Dtype from, Dtype to);

}  // namespace teratron
