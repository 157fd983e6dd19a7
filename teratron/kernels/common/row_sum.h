// A sum over rows as launchers, and loops of the CPU, are told of it. Raw pointers.
#pragma once

namespace teratron::cuda {

/// Blocks leave partial sums, [as many as the launcher says, columns of what is summed], whose sum [columns] goes to `out`, or is
/// added to what stands there. Accumulation type; null: not wanted.
struct RowSum {
  void* partial = nullptr;
  void* out = nullptr;
  bool adds = false;
};

}  // namespace teratron::cuda
