// Pillow's integer arithmetic of colours: transparency over white, CMYK to RGB.
#pragma once

#include <cstdint>

namespace teratron {

/// Sample of a colour with this alpha over white.
inline uint8_t over_white(uint32_t sample, uint32_t alpha) {
  const uint32_t t = sample * alpha * 128 + 255 * (255 - alpha) * 128 + 16384;
  return static_cast<uint8_t>((((t >> 8) + t) >> 8) >> 7);
}

/// RGBA pixels over white, or without their alpha.
inline void rgba_over_white(const uint8_t* rgba, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i) {
    for (int c = 0; c < 3; ++c) rgb[i * 3 + c] = over_white(rgba[i * 4 + c], rgba[i * 4 + 3]);
  }
}
inline void rgba_without_alpha(const uint8_t* rgba, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i) {
    for (int c = 0; c < 3; ++c) rgb[i * 3 + c] = rgba[i * 4 + c];
  }
}

/// CMYK as JPEGs have it, inverted (255: no ink).
inline void inverted_cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i) {
    const uint32_t light = cmyk[i * 4 + 3];
    for (int c = 0; c < 3; ++c) {
      const uint32_t t = (255u - cmyk[i * 4 + c]) * light + 128;
      const uint32_t ink = ((t >> 8) + t) >> 8;
      rgb[i * 3 + c] = static_cast<uint8_t>(ink < light ? light - ink : 0);
    }
  }
}

}  // namespace teratron
