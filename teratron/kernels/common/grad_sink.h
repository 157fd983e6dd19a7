// Where sums over rows go.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace teratron {

/// A sum is written over `out`, or added to it, and `out` returned, where that is a contiguous tensor of the sum's type, size and
/// device. Else the sum is a new tensor, and `out` is left alone: whoever wants it added adds it.
struct SumInto {
  at::Tensor out = {};
  bool adds = false;
};
/// Whether a kernel is to leave a sum over rows, too, and where.
using WantedSum = std::optional<SumInto>;

}  // namespace teratron
