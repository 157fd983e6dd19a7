// Images in the texts of a model that reads them. Without torch, for requests.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace teratron {

/// Each image is `rows` tokens `token`, whose word embeddings are never read.
struct ImageTokens {
  int64_t token = 0;
  int64_t rows = 0;
  std::vector<int64_t> shape = {};  // of the pixel values of an image

  /// Pixel values of an image.
  int64_t values() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

}  // namespace teratron
