// A sum over rows as launchers and CPU loops see it. Raw pointers.
#pragma once

namespace teratron::cuda {

/// Two stages: every block writes a row of partial sums to the workspace [workspace rows, columns]; then
/// their sum is written to `out` [columns], or added to it. In the accumulation type; null: not requested.
struct ColumnReduction {
  void* workspace = nullptr;
  void* out = nullptr;
  bool accumulate = false;
};

}  // namespace teratron::cuda
