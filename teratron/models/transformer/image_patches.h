// Images as rows of patches.
#pragma once

#include <ATen/ATen.h>

namespace teratron {

/// Pixels [N, channels, height, width] as [patches, N, channels * patch^2]: whole square patches, line by
/// line from the top left. Columns are channel, line, column.
at::Tensor image_patches(const at::Tensor& pixels_NCHW, int64_t patch);

}  // namespace teratron
