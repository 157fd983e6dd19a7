// Resampling of bytes, exactly as Pillow's or torchvision's.
//
// Output pixel i of an axis n -> m is a weighted mean of the pixels around (i + 0.5) * n / m: of a triangle
// (bilinear) or a cubic with a = -0.5 (bicubic), widened by n / m where the image shrinks. Weights are fixed
// point; each axis is a pass that rounds to bytes, so the order of the passes shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "teratron/images/image.h"

namespace teratron {

/// --image-resize
enum class ResizeStyle : uint8_t {
  pillow13,     // Pillow 13: columns first where the height shrinks by more than twice as much as the width
  pillow,       // Pillow up to 12.3: rows first
  torchvision,  // torchvision: rows first, weights of 16 bits
};
std::optional<ResizeStyle> resize_style_of(std::string_view name);

enum class ResizeFilter : uint8_t { bilinear, bicubic };

/// A part of an image: pixels [left, left + width) of rows [top, top + height).
struct ImageBox {
  int64_t left = 0, top = 0, width = 0, height = 0;
};

struct ResizeOptions {
  ImageSize size;     // of the whole output
  ImageBox box = {};  // the part of it that is computed
  ResizeFilter filter = ResizeFilter::bicubic;
  ResizeStyle style = ResizeStyle::pillow13;
};

Image resized(const Image& image, const ResizeOptions& options);

}  // namespace teratron
