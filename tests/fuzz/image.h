// An image of any bytes: it is refused, or its header says the size that is decoded.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "teratron/base/error.h"
#include "teratron/images/image.h"

namespace teratron::fuzz {

inline void decode(std::span<const uint8_t> bytes) {
  const ImageLimits limits{.max_pixels = 1 << 18, .max_side = 4096};
  ImageSize size;
  try {
    size = read_image_size(bytes, "image", limits);
  } catch (const UserError&) {
  }
  try {
    const Image image = decode_image(bytes, "image", limits);
    if (image.size() != size) std::abort();
    uint64_t sum = 0;  // reads every pixel
    for (const uint8_t byte : image.bytes()) sum += byte;
    if (sum > image.bytes().size() * 255) std::abort();
  } catch (const UserError&) {
  }
}

}  // namespace teratron::fuzz
