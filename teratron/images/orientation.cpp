#include "teratron/images/orientation.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace teratron {

namespace {

constexpr std::string_view exif_prefix{"Exif\0\0", 6};

// Integers of TIFF data at checked offsets.
class TiffReader {
 public:
  explicit TiffReader(std::span<const uint8_t> bytes) : bytes_(bytes) {
    const std::string_view start = text_of(bytes).substr(0, 4);
    big_endian_ = start.starts_with("MM");
    // Pillow also takes the other byte order of the 42.
    const std::string_view number = start.size() == 4 ? start.substr(2) : std::string_view();
    const bool is_42 = number == std::string_view("\0*", 2) || number == std::string_view("*\0", 2);
    is_tiff_ = is_42 && (big_endian_ || start.starts_with("II"));
  }

  bool is_tiff() const { return is_tiff_; }
  std::optional<uint32_t> read(uint64_t offset, int size) const {
    if (offset + static_cast<uint64_t>(size) > bytes_.size()) return std::nullopt;
    uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      const int place = big_endian_ ? size - 1 - i : i;
      value |= uint32_t{bytes_[offset + static_cast<uint64_t>(i)]} << 8 * place;
    }
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  bool big_endian_ = false;
  bool is_tiff_ = false;
};

// The first value of an IFD entry, if that is an integer.
std::optional<uint32_t> first_value(const TiffReader& tiff, uint64_t entry) {
  constexpr uint32_t kShort = 3, kLong = 4, kSignedShort = 8, kSignedLong = 9;
  const uint32_t type = tiff.read(entry + 2, 2).value_or(0);
  const uint32_t count = tiff.read(entry + 4, 4).value_or(0);
  const bool is_short = type == kShort || type == kSignedShort;
  if (count == 0 || !(is_short || type == kLong || type == kSignedLong)) return std::nullopt;
  const int size = is_short ? 2 : 4;
  if (static_cast<uint64_t>(size) * count <= 4) return tiff.read(entry + 8, size);
  const auto offset = tiff.read(entry + 8, 4);
  return offset ? tiff.read(*offset, size) : std::nullopt;
}

std::optional<uint32_t> exif_orientation(std::span<const uint8_t> exif) {
  constexpr uint32_t kOrientation = 0x112;
  for (int i = 0; i < 2 && text_of(exif).starts_with(exif_prefix); ++i)
    exif = exif.subspan(exif_prefix.size());
  const TiffReader tiff(exif);
  const auto directory = tiff.read(4, 4);
  if (!tiff.is_tiff() || !directory) return std::nullopt;
  const uint32_t entries = tiff.read(*directory, 2).value_or(0);
  std::optional<uint32_t> orientation;
  for (uint32_t i = 0; i < entries; ++i) {
    const uint64_t entry = uint64_t{*directory} + 2 + uint64_t{i} * 12;
    const auto tag = tiff.read(entry, 2);
    if (!tag) break;
    if (tag != kOrientation) continue;
    if (const auto value = first_value(tiff, entry)) orientation = value;
  }
  return orientation;
}

std::optional<uint32_t> xmp_orientation(std::string_view xmp) {
  constexpr std::string_view name = "tiff:Orientation";
  for (size_t at = xmp.find(name); at != std::string_view::npos; at = xmp.find(name, at + 1)) {
    std::string_view rest = xmp.substr(at + name.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return static_cast<uint32_t>(rest[0] - '0');
  }
  return std::nullopt;
}

// Pixel (x, y) of the turned image is at offset + x * x_step + y * y_step of the image, counted in pixels.
struct Turn {
  int64_t offset = 0, x_step = 0, y_step = 0;
};

Turn turn_of(ImageSize size, int orientation) {
  const int64_t w = size.width, last_column = w - 1, last_row = w * (size.height - 1);
  switch (orientation) {
    case 2:
      return {last_column, -1, w};
    case 3:
      return {last_row + last_column, -1, -w};
    case 4:
      return {last_row, 1, -w};
    case 5:
      return {0, w, 1};
    case 6:
      return {last_row, -w, 1};
    case 7:
      return {last_row + last_column, -w, -1};
    default:
      return {last_column, w, -1};
  }
}

}  // namespace

int orientation_of(std::span<const uint8_t> exif, std::span<const uint8_t> xmp) {
  auto value = exif_orientation(exif);
  if (!value) value = xmp_orientation(text_of(xmp));
  return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
}

ImageSize turned(ImageSize size, int orientation) {
  return orientation >= 5 ? ImageSize{size.height, size.width} : size;
}

Image turned(Image image, int orientation) {
  if (orientation < 2 || orientation > 8) return image;
  const Turn turn = turn_of(image.size(), orientation);
  Image out(turned(image.size(), orientation));
  const uint8_t* const pixels = image.row(0);
  constexpr int64_t kBlock = 64;  // so that columns are read from cache
  for (int64_t y0 = 0; y0 < out.height(); y0 += kBlock) {
    for (int64_t x0 = 0; x0 < out.width(); x0 += kBlock) {
      const int64_t x1 = std::min(x0 + kBlock, out.width());
      for (int64_t y = y0; y < std::min(y0 + kBlock, out.height()); ++y) {
        uint8_t* target = out.row(y) + x0 * 3;
        for (int64_t x = x0; x < x1; ++x, target += 3)
          std::memcpy(target, pixels + (turn.offset + x * turn.x_step + y * turn.y_step) * 3, 3);
      }
    }
  }
  return out;
}

}  // namespace teratron
