// The dropout mask as plain data, shared by host and device code. Internal to kernels.
#pragma once

#include "teratron/base/philox.h"

namespace at {
class Tensor;
}

namespace teratron {

struct Dropout;

/// Element e is kept if its random word is >= threshold, and then multiplied by scale.
struct DropoutMask {
  RandomKey key;
  uint64_t threshold = 0;  // p * 2^32
  double scale = 1;        // 1 / (1 - p)
  const int64_t* rows = nullptr;
  int64_t first_row = 0;
  int64_t columns = 0;
  int64_t first_column = 0;

  /// Global index of local element (row, 0).
  TERATRON_HOST_DEVICE uint64_t row_start(int64_t row) const {
    const int64_t global = rows != nullptr ? rows[row] : first_row + row;
    return static_cast<uint64_t>(global) * static_cast<uint64_t>(columns) +
           static_cast<uint64_t>(first_column);
  }
};

/// Checks that `dropout` fits x. Points into dropout.where.rows.
DropoutMask make_dropout_mask(const Dropout& dropout, const at::Tensor& x);

}  // namespace teratron
