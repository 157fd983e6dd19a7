// Attention with linear biases (Press, Smith, Lewis 2022): head h adds slope(h) * (j - i) to the score of query
// i and key j; no positions enter anywhere else.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// Of all `heads`: a geometric sequence 2^(-8/n), 2^(-16/n)... for a power of two n; otherwise those of the
/// power of two below, followed by every other one of the power of two above.
std::vector<double> alibi_slopes(int64_t heads);

/// [count] of the heads [first, first + count), f64 for f64 models, else f32.
at::Tensor alibi_slopes(int64_t heads, int64_t first, int64_t count, const at::TensorOptions& model);

}  // namespace teratron
