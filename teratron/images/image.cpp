#include "teratron/images/image.h"

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/images/image_format.h"
#include "teratron/images/orientation.h"

namespace teratron {

void refuse_image(const EncodedImage& encoded, std::string_view format, std::string_view reason) {
  throw data_error({.what = fmt::format("cannot read this {}: {}", format, printable(reason)),
                    .where = printable(encoded.where, 1000),
                    .fix = "Replace the image or remove it from the data"});
}

void check_image_size(const EncodedImage& encoded, ImageSize size) {
  const std::string shown = fmt::format("{} x {} pixels", size.width, size.height);
  const ImageLimits& limits = encoded.limits;
  if (size.width <= 0 || size.height <= 0) refuse_image(encoded, "image", shown);
  if (size.width > limits.max_side || size.height > limits.max_side)
    refuse_image(encoded, "image", fmt::format("{}; a side may have {}", shown, limits.max_side));
  if (size.pixels() <= limits.max_pixels) return;
  throw data_error({.what = fmt::format("the image has {}, {} in all, more than {}", shown, size.pixels(),
                                        limits.max_pixels),
                    .where = printable(encoded.where, 1000),
                    .fix = "Raise --max-image-pixels if the image is meant to be so large"});
}

namespace {

struct Format {
  bool (*is_format)(std::span<const uint8_t>);
  ImageHeader (*read_header)(const EncodedImage&);
  Image (*decode)(const EncodedImage&, ImageHeader&);
};
constexpr Format formats[] = {{is_jpeg, read_jpeg_header, decode_jpeg},
                              {is_png, read_png_header, decode_png},
                              {is_webp, read_webp_header, decode_webp}};

std::string too_many_bytes(int64_t bytes, const ImageLimits& limits) {
  return fmt::format("{} bytes, more than {} MiB", bytes, limits.max_file_bytes >> 20);
}

const Format& format_of(const EncodedImage& encoded) {
  const auto bytes = static_cast<int64_t>(encoded.bytes.size());
  if (bytes > encoded.limits.max_file_bytes)
    refuse_image(encoded, "image", too_many_bytes(bytes, encoded.limits));
  if (bytes == 0) refuse_image(encoded, "image", "it is empty");
  for (const Format& format : formats) {
    if (format.is_format(encoded.bytes)) return format;
  }
  refuse_image(encoded, "image", "it is neither JPEG, PNG nor WebP");
}

}  // namespace

Image decode_image(std::span<const uint8_t> bytes, const std::string& where, const ImageLimits& limits) {
  const EncodedImage encoded{bytes, where, limits};
  ImageHeader header;
  Image image = format_of(encoded).decode(encoded, header);
  return turned(std::move(image), header.orientation);
}

ImageSize read_image_size(std::span<const uint8_t> bytes, const std::string& where,
                          const ImageLimits& limits) {
  const EncodedImage encoded{bytes, where, limits};
  const ImageHeader header = format_of(encoded).read_header(encoded);
  return turned(header.size, header.orientation);
}

std::string read_image_file(const std::filesystem::path& path, const ImageLimits& limits) {
  const File file = File::open(path, ExitCode::data);
  const int64_t size = file.size();
  const std::string where = path.string();
  if (size > limits.max_file_bytes) refuse_image({{}, where, limits}, "image", too_many_bytes(size, limits));
  std::string contents(static_cast<size_t>(size), '\0');
  file.read(contents.data(), size, 0);
  return contents;
}

}  // namespace teratron
