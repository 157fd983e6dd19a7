// Launchers of cross_entropy.h. Raw device pointers.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/kernels/fp8/fp8_cuda.h"

struct CUstream_st;

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
void cross_entropy_statistics(const VocabShape& shape, const CrossEntropyStatisticsArgs& args,
                              CUstream_st* stream);

struct CrossEntropyGradientArgs {
  void* logits;
  const int64_t* targets;
  const void *max, *sum_exp, *scale;
};
void cross_entropy_gradient(const VocabShape& shape, const CrossEntropyGradientArgs& args,
                            CUstream_st* stream);
/// Rows times scale[t] / *largest, where that is not 1; rows of scale 0 are not read.
struct CrossEntropyScaleArgs {
  void* gradient;
  const float *scale, *largest;
};
void cross_entropy_scale(const VocabShape& shape, const CrossEntropyScaleArgs& args, CUstream_st* stream);

struct CrossEntropyWithGradientArgs {
  void* logits;  // aligned to 16 bytes
  const int64_t* targets;
  float* losses;
};
/// On the current device.
bool has_cross_entropy_with_gradient(const VocabShape& shape);
void cross_entropy_with_gradient(const VocabShape& shape, const CrossEntropyWithGradientArgs& args,
                                 CUstream_st* stream);

/// bf16 or f16; rows and width are multiples of 16.
void cross_entropy_gradient_fp8(const VocabShape& shape, const CrossEntropyGradientArgs& args,
                                const Fp8Target& to, CUstream_st* stream);

}  // namespace teratron::cuda
