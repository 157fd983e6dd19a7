// Destination of a reduction over rows (a bias or norm-weight gradient).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace teratron {

/// If `out` is contiguous and has the result's dtype, numel and device, the result is written to it, or added
/// to it if `accumulate`, and `out` is returned. Otherwise a new tensor is returned, `out` stays as it is,
/// and the caller accumulates.
struct GradSink {
  at::Tensor out = {};
  bool accumulate = false;
};

}  // namespace teratron
