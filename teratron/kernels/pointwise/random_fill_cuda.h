// Launcher of random_fill.h. Raw device pointers.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/base/philox.h"

struct CUstream_st;

namespace teratron::cuda {

/// A local array of up to 4 dimensions and where its elements lie in the global numbering.
struct FillArgs {
  int64_t size[4];           // outermost first; unused leading dimensions are 1
  int64_t stride[4];         // of x
  int64_t global_stride[4];  // in the row-major global tensor
  uint64_t first;            // global index of local element 0
  void* x;
  Dtype dtype;
  RandomKey key;
  bool uniform;
  float offset, scale;
};
void random_fill(const FillArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
