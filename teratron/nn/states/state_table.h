// Rows of a table that holds the states of many sequences, for a step of R of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

struct StateTable {
  at::Tensor states;        // [rows, ...]
  at::Tensor from_R, to_R;  // i64: rows before and after the step; below 0: the sequence begins

  StateTable narrow(int64_t first, int64_t count) const;
  /// [R, ...]; zeros where a sequence begins.
  at::Tensor read() const;
  void write(const at::Tensor& states_R) const;
};

}  // namespace teratron
