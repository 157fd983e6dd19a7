// Images as RGB bytes: JPEG, PNG and WebP from memory, as Pillow decodes them, turned as EXIF says.
//
// Gray, 1-bit and palette images become RGB; transparency is composed over white; 16-bit samples keep their
// high byte; CMYK is inverted as Adobe writes it. ICC profiles and gamma are ignored. Animations give their
// first frame.
//
// Whatever is wrong with an image is a UserError(data) that names it: the limits below, checked before pixels
// are allocated, an unknown format, damaged or truncated contents. Everything here is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace teratron {

inline std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

struct ImageSize {
  int64_t width = 0, height = 0;
  bool operator==(const ImageSize&) const = default;
  int64_t pixels() const { return width * height; }
};

/// RGB bytes, row by row without gaps.
class Image {
 public:
  /// Bytes behind the last pixel, for loops that read and write blocks.
  static constexpr int64_t kSlack = 32;

  Image() = default;
  /// Pixels without values.
  explicit Image(ImageSize size)
      : size_(size),
        rgb_(std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(size.pixels() * 3 + kSlack))) {}

  ImageSize size() const { return size_; }
  int64_t width() const { return size_.width; }
  int64_t height() const { return size_.height; }
  uint8_t* row(int64_t y) { return rgb_.get() + y * size_.width * 3; }
  const uint8_t* row(int64_t y) const { return rgb_.get() + y * size_.width * 3; }
  std::span<const uint8_t> bytes() const { return {rgb_.get(), static_cast<size_t>(size_.pixels() * 3)}; }

 private:
  ImageSize size_;
  std::unique_ptr<uint8_t[]> rgb_;
};

struct ImageLimits {
  int64_t max_pixels = 178'956'970;  // --max-image-pixels
  int64_t max_side = 65'500;
  int64_t max_file_bytes = int64_t{64} << 20;
};

/// Decodes an image; `where` is its name in errors, for instance "a.jpg" or "train.jsonl:12: a.jpg".
Image decode_image(std::span<const uint8_t> bytes, const std::string& where, const ImageLimits& limits);

/// Size that decode_image() gives, from the header alone.
ImageSize read_image_size(std::span<const uint8_t> bytes, const std::string& where,
                          const ImageLimits& limits);

/// Contents of a file, at most `limits.max_file_bytes`.
std::string read_image_file(const std::filesystem::path& path, const ImageLimits& limits);

}  // namespace teratron
