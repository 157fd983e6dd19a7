#include "teratron/images/image_processor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Padding to a square, and resizing without a crop, make large images of long thin ones.
constexpr int64_t kMaxPreparedPixels = int64_t{1} << 28;
constexpr int64_t kMaxResizedSide = int64_t{1} << 25;  // before a crop, which alone is computed

[[noreturn]] void refuse_size(ImageSize size, const std::string& where, const std::string& reason,
                              std::string fix) {
  throw data_error({.what = fmt::format("an image of {} x {} pixels {}", size.width, size.height, reason),
                    .where = printable(where, 1000),
                    .fix = std::move(fix)});
}

void check_made_size(ImageSize from, ImageSize to, int64_t max_pixels, const std::string& where) {
  const bool sides = std::min(to.width, to.height) > 0 && std::max(to.width, to.height) <= kMaxResizedSide;
  if (sides && to.pixels() <= max_pixels) return;
  refuse_size(from, where, fmt::format("would become one of {} x {}", to.width, to.height),
              "Remove it from the data");
}

int64_t whole(double value) {
  return static_cast<int64_t>(value);
}

ImageSize with_edges(ImageSize size, const ProcessorSettings& settings) {
  const auto w = static_cast<double>(size.width), h = static_cast<double>(size.height);
  auto shortest = static_cast<double>(settings.shortest);
  double exact = shortest;
  if (settings.rule == SizeRule::both_edges) {
    const double longest = static_cast<double>(settings.longest), low = std::min(w, h), high = std::max(w, h);
    if (high / low * shortest > longest) {
      exact = longest * low / high;
      shortest = std::nearbyint(exact);
    }
    // As transformers: an image that has the size already stays.
    if (std::min(w, h) == shortest) return size;
  }
  return size.width <= size.height ? ImageSize{whole(shortest), whole(exact * h / w)}
                                   : ImageSize{whole(exact * w / h), whole(shortest)};
}

ImageSize within(ImageSize size, const ProcessorSettings& settings) {
  const auto w = static_cast<double>(size.width), h = static_cast<double>(size.height);
  const double scale =
      std::min(static_cast<double>(settings.height) / h, static_cast<double>(settings.width) / w);
  return {whole(w * scale), whole(h * scale)};
}

// smart_resize of Qwen2-VL.
ImageSize with_area(ImageSize size, const ProcessorSettings& settings) {
  const auto factor = static_cast<double>(settings.patch_size * settings.merge_size);
  const auto w = static_cast<double>(size.width), h = static_cast<double>(size.height);
  const auto least = static_cast<double>(settings.shortest), most = static_cast<double>(settings.longest);
  double out_w = std::nearbyint(w / factor) * factor, out_h = std::nearbyint(h / factor) * factor;
  if (out_w * out_h > most) {
    const double shrink = std::sqrt(h * w / most);
    out_w = std::max(factor, std::floor(w / shrink / factor) * factor);
    out_h = std::max(factor, std::floor(h / shrink / factor) * factor);
  } else if (out_w * out_h < least) {
    const double grow = std::sqrt(least / (h * w));
    out_w = std::ceil(w * grow / factor) * factor;
    out_h = std::ceil(h * grow / factor) * factor;
  }
  return {whole(out_w), whole(out_h)};
}

// The middle of an axis: `count` pixels from `source` on, which land at `target` of the crop.
struct CropAxis {
  int64_t source = 0, target = 0, count = 0;
};
CropAxis crop_axis(int64_t size, int64_t crop, ResizeStyle style) {
  if (size >= crop) return {(size - crop) / 2, 0, crop};
  const int64_t border = crop - size;  // an odd pixel comes first, with torchvision last
  return {0, style == ResizeStyle::torchvision ? border / 2 : (border + 1) / 2, size};
}

Image on_canvas(const Image& image, ImageSize canvas, int64_t left, int64_t top,
                const std::array<uint8_t, 3>& color) {
  Image out(canvas);
  for (int64_t x = 0; x < canvas.width; ++x) std::memcpy(out.row(0) + x * 3, color.data(), 3);
  const auto row_bytes = static_cast<size_t>(canvas.width * 3);
  for (int64_t y = 1; y < canvas.height; ++y) std::memcpy(out.row(y), out.row(0), row_bytes);
  for (int64_t y = 0; y < image.height(); ++y)
    std::memcpy(out.row(top + y) + left * 3, image.row(y), static_cast<size_t>(image.width() * 3));
  return out;
}

ImageSize padded_size(ImageSize size, const ProcessorSettings& settings) {
  const int64_t side = std::max(size.width, size.height);
  return settings.pad_to_square ? ImageSize{side, side} : size;
}

Image padded(const Image& image, const ProcessorSettings& settings) {
  std::array<uint8_t, 3> color;
  for (size_t c = 0; c < 3; ++c) color[c] = static_cast<uint8_t>(static_cast<int>(settings.mean[c] * 255));
  const ImageSize square = padded_size(image.size(), settings);
  const int64_t left = (square.width - image.width()) / 2, top = (square.height - image.height()) / 2;
  return on_canvas(image, square, left, top, color);
}

// Value of a byte: that of the slow processors, which round each step, or of the fast ones, which join them.
float value_of(int byte, size_t channel, const ProcessorSettings& settings, ResizeStyle style) {
  const auto mean = static_cast<float>(settings.mean[channel]);
  const auto deviation = static_cast<float>(settings.deviation[channel]);
  const auto sample = static_cast<float>(byte);
  if (style == ResizeStyle::torchvision && settings.rescale) {
    const auto factor = static_cast<float>(1.0 / *settings.rescale);
    return settings.normalize ? (sample - mean * factor) / (deviation * factor)
                              : sample * static_cast<float>(*settings.rescale);
  }
  const float scaled = settings.rescale ? static_cast<float>(byte * *settings.rescale) : sample;
  return settings.normalize ? (scaled - mean) / deviation : scaled;
}

}  // namespace

int64_t PixelShape::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

ImageProcessor::ImageProcessor(ProcessorSettings settings, ResizeStyle style)
    : settings_(std::move(settings)), style_(style) {
  for (size_t channel = 0; channel < 3; ++channel) {
    for (int byte = 0; byte < 256; ++byte)
      values_[channel][static_cast<size_t>(byte)] = value_of(byte, channel, settings_, style_);
  }
}

std::optional<ImageSize> ImageProcessor::fixed_size() const {
  if (settings_.crop) return settings_.crop;
  if (settings_.rule == SizeRule::exact) return ImageSize{settings_.width, settings_.height};
  const bool square = settings_.pad_to_square && settings_.rule == SizeRule::shortest_edge;
  return square ? std::optional(ImageSize{settings_.shortest, settings_.shortest}) : std::nullopt;
}

ImageSize ImageProcessor::resized_size(ImageSize size, const std::string& where) const {
  switch (settings_.rule) {
    case SizeRule::keep:
      return size;
    case SizeRule::exact:
      return {settings_.width, settings_.height};
    case SizeRule::shortest_edge:
    case SizeRule::both_edges:
      return with_edges(size, settings_);
    case SizeRule::at_most:
      return within(size, settings_);
    case SizeRule::area:
      break;
  }
  constexpr int64_t kMaxAspect = 200;
  const int64_t low = std::min(size.width, size.height), high = std::max(size.width, size.height);
  if (high > kMaxAspect * low) {
    refuse_size(size, where, fmt::format("is more than {} times as long as wide", kMaxAspect),
                fmt::format("Crop it: {} takes no longer ones", settings_.type));
  }
  return with_area(size, settings_);
}

PixelShape ImageProcessor::shape_of_prepared(ImageSize size, const std::string& where) const {
  if (!settings_.patches) return {.sizes = {3, size.height, size.width}};
  const int64_t patch = settings_.patch_size, cell = patch * settings_.merge_size;
  if (size.width % cell != 0 || size.height % cell != 0) {
    refuse_size(size, where, fmt::format("has sides that are not multiples of {}", cell),
                "Let the processor resize: do_resize true");
  }
  PixelShape shape{.sizes = {}, .grid = {1, size.height / patch, size.width / patch}};
  shape.sizes = {shape.grid[1] * shape.grid[2], 3 * settings_.temporal_patch_size * patch * patch};
  return shape;
}

PixelShape ImageProcessor::shape_of(ImageSize size, const std::string& where) const {
  const ImageSize square = padded_size(size, settings_);
  check_made_size(size, square, kMaxPreparedPixels, where);
  const ImageSize whole_size = resized_size(square, where);
  check_made_size(size, whole_size, settings_.crop ? INT64_MAX : kMaxPreparedPixels, where);
  return shape_of_prepared(settings_.crop.value_or(whole_size), where);
}

Image ImageProcessor::prepare(const Image& image, const std::string& where) const {
  shape_of(image.size(), where);  // refuses the sizes that are too large
  if (settings_.pad_to_square && image.width() != image.height()) {
    const Image square = padded(image, settings_);
    return prepare(square, where);
  }
  const ImageSize size = resized_size(image.size(), where);
  ResizeOptions options{.size = size, .filter = settings_.filter, .style = style_};
  if (!settings_.crop) return resized(image, options);
  const CropAxis across = crop_axis(size.width, settings_.crop->width, style_);
  const CropAxis down = crop_axis(size.height, settings_.crop->height, style_);
  options.box = {across.source, down.source, across.count, down.count};
  Image middle = resized(image, options);
  if (middle.size() == *settings_.crop) return middle;
  return on_canvas(middle, *settings_.crop, across.target, down.target, {});
}

void ImageProcessor::write_values(const Image& prepared, float* out) const {
  const int64_t width = prepared.width(), height = prepared.height();
  if (!settings_.patches) {
    const uint8_t* rgb = prepared.row(0);
    const int64_t pixels = width * height;
    for (int64_t i = 0; i < pixels; ++i, rgb += 3) {
      for (size_t c = 0; c < 3; ++c) out[static_cast<int64_t>(c) * pixels + i] = values_[c][rgb[c]];
    }
    return;
  }
  const int64_t patch = settings_.patch_size, merge = settings_.merge_size, cell = patch * merge;
  // Patches of a merged cell are neighbours. A still image is the same in all its frames.
  const auto write_patch = [&](int64_t left, int64_t top) {
    for (size_t c = 0; c < 3; ++c) {
      const float* const first = out;
      for (int64_t y = 0; y < patch; ++y) {
        const uint8_t* rgb = prepared.row(top + y) + left * 3 + c;
        for (int64_t x = 0; x < patch; ++x, rgb += 3) *out++ = values_[c][*rgb];
      }
      for (int64_t frame = 1; frame < settings_.temporal_patch_size; ++frame)
        out = std::copy_n(first, patch * patch, out);
    }
  };
  for (int64_t y = 0; y < height; y += cell) {
    for (int64_t x = 0; x < width; x += cell) {
      for (int64_t i = 0; i < merge * merge; ++i) write_patch(x + i % merge * patch, y + i / merge * patch);
    }
  }
}

PixelValues ImageProcessor::process(const Image& image, const std::string& where) const {
  const Image prepared = prepare(image, where);
  PixelValues out{.shape = shape_of_prepared(prepared.size(), where), .values = {}};
  out.values.resize(static_cast<size_t>(out.shape.numel()));
  write_values(prepared, out.values.data());
  return out;
}

}  // namespace teratron
