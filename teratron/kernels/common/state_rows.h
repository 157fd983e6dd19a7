// Where the states of many sequences are in tables of them, for a step of R sequences.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

struct StateRows {
  at::Tensor from_R;  // i64: of the states before the step; below 0: the sequence begins
  at::Tensor to_R;    // i64: of those after it; no row of a table is in both

  StateRows narrow(int64_t first, int64_t count) const;
  /// table [rows, ...] -> [R, ...]; zeros where a sequence begins.
  at::Tensor read(const at::Tensor& table) const;
  void write(const at::Tensor& table, const at::Tensor& states_R) const;
};

/// What mixers with a convolution and a recurrence keep.
struct StateTables {
  at::Tensor conv;       // [rows, W - 1, channels]: the last inputs of the convolution
  at::Tensor recurrent;  // [rows, ...]
  StateRows rows;
};

}  // namespace teratron
