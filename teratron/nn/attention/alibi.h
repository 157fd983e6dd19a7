// Attention with linear biases (Press, Smith, Lewis 2022): head h adds slope(h) * (j - i) to the score of
// query i and key j; there is no other position embedding.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace teratron {

/// Slopes of all heads: the geometric sequence 2^(-8/n), 2^(-16/n), ... for a power of two n; otherwise that
/// of the next lower power of two, followed by every other slope of the next higher one.
std::vector<double> alibi_slopes(int64_t heads);

/// [count]: slopes of the heads [first, first + count), f64 for f64 models, else f32.
at::Tensor alibi_slopes(int64_t heads, int64_t first, int64_t count, const at::TensorOptions& model);

}  // namespace teratron
