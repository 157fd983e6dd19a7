// A sum over rows as launchers are told of it. Raw device pointers.
#pragma once

namespace teratron::cuda {

/// Blocks leave partial sums, [as many as the launcher says, width], whose sum [width] goes to `out`, or is added to what
/// stands there. Accumulation type; null: not wanted.
struct RowSum {
  void* partial = nullptr;
  void* out = nullptr;
  bool adds = false;
};

}  // namespace teratron::cuda
