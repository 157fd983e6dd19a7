#include "teratron/models/transformer/image_patches.h"

namespace teratron {

at::Tensor image_patches(const at::Tensor& pixels_NCHW, int64_t patch) {
  const int64_t images = pixels_NCHW.size(0), channels = pixels_NCHW.size(1);
  const int64_t lines = pixels_NCHW.size(2) / patch, columns = pixels_NCHW.size(3) / patch;
  return pixels_NCHW.narrow(2, 0, lines * patch)
      .narrow(3, 0, columns * patch)
      .reshape({images, channels, lines, patch, columns, patch})
      .permute({2, 4, 0, 1, 3, 5})
      .reshape({lines * columns, images, channels * patch * patch});
}

}  // namespace teratron
