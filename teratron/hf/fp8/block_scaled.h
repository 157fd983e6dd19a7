// Weights in FP8 with a scale for each block of 128 x 128 elements (DeepSeek-V3), read as bf16.
#pragma once

#include <functional>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

constexpr int64_t scale_block = 128;

/// Whether `scales`, f32, has one for each block of a matrix `weight`, f8_e4m3.
bool is_block_scaled(const TensorInfo& weight, const TensorInfo& scales);

/// Bytes [begin, end) of a tensor.
using ReadBytes = std::function<void(int64_t begin, int64_t bytes, void* out)>;

struct BlockScaled {
  ReadBytes weight, scales;
  int64_t columns = 0;
};
/// Elements [begin, begin + count) as bf16: each times the scale of its block, rounded once.
void read_block_scaled(const BlockScaled& matrix, int64_t begin, int64_t count, void* out);

}  // namespace teratron
