// Random numbers of rows that depend on (key, row, column) only, as those of dropout (base/philox.h): the
// same on every layout, device and in recomputation.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/base/philox.h"

namespace teratron {

/// Uniform in (0, 1], fp32 [R, columns]. Element (r, c) is the element rows[r] * n + c of the stream, n being
/// `columns` rounded up to a multiple of 4.
at::Tensor uniform_rows(const RandomKey& key, const at::Tensor& rows_R, int64_t columns);

}  // namespace teratron
