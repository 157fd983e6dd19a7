// What the decoders of the formats share. Each has a function for the header and one for the pixels.
#pragma once

#include <string>
#include <string_view>

#include "teratron/images/image.h"

namespace teratron {

/// An image as it is stored.
struct EncodedImage {
  std::span<const uint8_t> bytes;
  const std::string& where;
  const ImageLimits& limits;
};

struct ImageHeader {
  ImageSize size;       // before it is turned
  int orientation = 1;  // EXIF's tag 0x112
};

[[noreturn]] void refuse_image(const EncodedImage& encoded, std::string_view format, std::string_view reason);

/// Refuses sizes beyond the limits, and empty images.
void check_image_size(const EncodedImage& encoded, ImageSize size);

bool is_jpeg(std::span<const uint8_t> bytes);
bool is_png(std::span<const uint8_t> bytes);
bool is_webp(std::span<const uint8_t> bytes);

ImageHeader read_jpeg_header(const EncodedImage& encoded);
ImageHeader read_png_header(const EncodedImage& encoded);
ImageHeader read_webp_header(const EncodedImage& encoded);

/// The pixels as stored; sets `header`.
Image decode_jpeg(const EncodedImage& encoded, ImageHeader& header);
Image decode_png(const EncodedImage& encoded, ImageHeader& header);
Image decode_webp(const EncodedImage& encoded, ImageHeader& header);

}  // namespace teratron
