#include "teratron/nn/attention/choose_backend.h"

#include <array>

namespace teratron {

namespace {

constexpr int64_t most_segments = 65'535;       // the grid of flash has one row of blocks per segment
constexpr double most_dropout = 1.0 - 0x1p-17;  // the rates of the fused kernel are multiples of 2^-16

bool is_half_on_gpu(const AttentionShape& shape, int64_t widest) {
  const bool half = shape.dtype == Dtype::bf16 || shape.dtype == Dtype::f16;
  return shape.gpu && half && shape.width % 8 == 0 && shape.width <= widest;
}

// cuDNN's causal mask is aligned top-left, which for Sq != Sk is another mask.
bool cudnn_supports(const AttentionShape& shape) {
  return is_half_on_gpu(shape, 128) && shape.has_plain_scores() && !shape.segments && !shape.has_window() &&
         (!shape.causal || shape.queries == shape.keys) && shape.queries > 1 && !shape.deterministic;
}

bool flash_supports(const AttentionShape& shape) {
  return is_half_on_gpu(shape, 256) && shape.has_plain_scores() &&
         shape.segments.value_or(0) <= most_segments;
}

bool fused_supports(const AttentionShape& shape) {
  return is_half_on_gpu(shape, 128) && shape.dropout < most_dropout && shape.scale > 0.0 &&
         !(shape.biased && shape.capped) && shape.fits_fused_kernel;
}

}  // namespace

bool supports(AttentionBackend backend, const AttentionShape& shape) {
  if (!shape.one_width) return backend == AttentionBackend::math;
  switch (backend) {
    case AttentionBackend::flash_cpu:
      return !shape.gpu && shape.has_plain_scores();
    case AttentionBackend::cudnn:
      return cudnn_supports(shape);
    case AttentionBackend::flash_varlen:
      return shape.segments && flash_supports(shape);
    case AttentionBackend::flash:
      return flash_supports(shape);
    case AttentionBackend::fused:
      return fused_supports(shape);
    case AttentionBackend::math:
      break;
  }
  return true;
}

AttentionBackend choose_backend(const AttentionShape& shape) {
  using enum AttentionBackend;
  for (const AttentionBackend backend : {flash_cpu, cudnn, flash_varlen, flash, fused}) {
    if (supports(backend, shape)) return backend;
  }
  return math;
}

std::string_view name_of(AttentionBackend backend) {
  static constexpr std::array<std::string_view, 6> names = {"flash-cpu", "cudnn", "flash-varlen",
                                                            "flash",     "fused", "math"};
  return names.at(static_cast<size_t>(backend));
}

}  // namespace teratron
