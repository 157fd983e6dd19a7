// Launchers of cross_entropy.h. Raw device pointers.
#pragma once

#include "teratron/kernels/fp8/launchers.h"

namespace teratron::cuda {

struct VocabShape {
  int64_t rows;
  int64_t width;  // columns of the buffer, padding included
  int64_t first;
  int64_t columns;
  Dtype dtype;
};

struct CrossEntropyStatisticsArgs {
  const void* logits;
  const int64_t* targets;
  void *max, *sum_exp, *target_logit;
};
TERATRON_LAUNCHER(void, cross_entropy_statistics, const VocabShape& shape,
                  const CrossEntropyStatisticsArgs& args, CUstream_st* stream);

struct CrossEntropyGradientArgs {
  void* logits;
  const int64_t* targets;
  const void *max, *sum_exp, *scale;
};
TERATRON_LAUNCHER(void, cross_entropy_gradient, const VocabShape& shape, const CrossEntropyGradientArgs& args,
                  CUstream_st* stream);
/// Multiplies rows by scale[t] / *largest where that is not 1; rows of scale 0 are not read.
struct CrossEntropyScaleArgs {
  void* gradient;
  const float *scale, *largest;
};
TERATRON_LAUNCHER(void, cross_entropy_scale, const VocabShape& shape, const CrossEntropyScaleArgs& args,
                  CUstream_st* stream);

struct CrossEntropyWithGradientArgs {
  void* logits;  // 16-byte aligned
  const int64_t* targets;
  float* losses;
};
/// On the current device.
TERATRON_LAUNCHER(bool, has_cross_entropy_with_gradient, const VocabShape& shape);
TERATRON_LAUNCHER(void, cross_entropy_with_gradient, const VocabShape& shape,
                  const CrossEntropyWithGradientArgs& args, CUstream_st* stream);

/// bf16 or f16; rows and width are multiples of 16.
TERATRON_LAUNCHER(void, cross_entropy_gradient_fp8, const VocabShape& shape,
                  const CrossEntropyGradientArgs& args, const Fp8Output& to, CUstream_st* stream);

}  // namespace teratron::cuda
