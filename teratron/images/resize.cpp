#include "teratron/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/images/resize_kernels.h"

namespace teratron {

namespace {

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

struct Axis {
  int64_t from = 0, to = 0;      // sizes of the whole
  int64_t first = 0, count = 0;  // outputs that are computed
};

// Pixels [first, first + count) of an axis.
struct Range {
  int64_t first = 0, count = 0;
};

// Weights of an axis: output i is the sum over its inputs.
struct Weights {
  std::vector<Range> inputs;     // of each output
  std::vector<int32_t> weights;  // `stride` per output, zeros behind its taps
  int64_t stride = 0;
  Rounding rounding;

  const int32_t* of(int64_t output) const { return weights.data() + output * stride; }
};

// The weights of an output before they are rounded.
class ExactWeights {
 public:
  ExactWeights(const Axis& axis, ResizeFilter filter)
      : from_(axis.from),
        scale_(static_cast<double>(axis.from) / static_cast<double>(axis.to)),
        widened_(std::max(scale_, 1.0)),
        support_(widened_ * (filter == ResizeFilter::bicubic ? 2.0 : 1.0)),
        function_(filter == ResizeFilter::bicubic ? bicubic : bilinear) {}

  int64_t most_taps() const { return static_cast<int64_t>(std::ceil(support_)) * 2 + 1; }

  /// Returns the inputs and writes a weight for each.
  Range compute(int64_t output, double* weights) const {
    const double center = (static_cast<double>(output) + 0.5) * scale_;
    const double inverse = 1.0 / widened_;
    const int64_t low = std::max<int64_t>(static_cast<int64_t>(center - support_ + 0.5), 0);
    const int64_t high = std::min(static_cast<int64_t>(center + support_ + 0.5), from_);
    double sum = 0;
    for (int64_t j = 0; j < high - low; ++j)
      sum += weights[j] = function_((static_cast<double>(j + low) - center + 0.5) * inverse);
    for (int64_t j = 0; j < high - low && sum != 0.0; ++j) weights[j] /= sum;
    return {low, high - low};
  }

 private:
  int64_t from_;
  double scale_, widened_, support_;
  double (*function_)(double);
};

// torchvision has as many bits as the largest weight of the whole axis leaves in 16.
int bits_of(const Axis& axis, const ExactWeights& exact, ResizeStyle style) {
  constexpr int kPillowBits = 22;
  if (style != ResizeStyle::torchvision) return kPillowBits;
  std::vector<double> weights(static_cast<size_t>(exact.most_taps()));
  double largest = 0;
  for (int64_t i = 0; i < axis.to; ++i) {
    const Range inputs = exact.compute(i, weights.data());
    largest = std::max(largest, *std::max_element(weights.begin(), weights.begin() + inputs.count));
  }
  int bits = 0;
  while (bits < kPillowBits &&
         static_cast<int>(0.5 + largest * static_cast<double>(1 << (bits + 1))) < 1 << 15)
    ++bits;
  return bits;
}

Weights weights_of(const Axis& axis, ResizeFilter filter, ResizeStyle style) {
  constexpr int64_t kGroup = TapGroup::kTaps;
  const ExactWeights exact(axis, filter);
  Weights out;
  out.stride = (exact.most_taps() + kGroup - 1) / kGroup * kGroup;
  out.rounding.bits = bits_of(axis, exact, style);
  const auto one = static_cast<double>(int64_t{1} << out.rounding.bits);
  out.weights.reserve(static_cast<size_t>(axis.count * out.stride));
  std::vector<double> weights(static_cast<size_t>(out.stride));
  for (int64_t i = axis.first; i < axis.first + axis.count; ++i) {
    std::fill(weights.begin(), weights.end(), 0.0);
    out.inputs.push_back(exact.compute(i, weights.data()));
    for (const double weight : weights)
      out.weights.push_back(static_cast<int32_t>(weight * one + (weight < 0 ? -0.5 : 0.5)));
  }
  return out;
}

// Weights of all outputs, in groups; each has as many.
std::vector<TapGroup> grouped(const Weights& weights) {
  std::vector<TapGroup> groups;
  groups.reserve(weights.weights.size() / TapGroup::kTaps);
  for (size_t i = 0; i < weights.weights.size(); i += TapGroup::kTaps)
    groups.emplace_back(
        std::span<const int32_t, TapGroup::kTaps>(weights.weights.data() + i, TapGroup::kTaps));
  return groups;
}

// A box of an image whose pixels are named by their places in the whole.
class View {
 public:
  explicit View(const Image& image) : View(image, {0, 0, image.width(), image.height()}) {}
  /// `image` is the box.
  View(const Image& image, const ImageBox& box)
      : pixels_(image.row(0)), stride_(image.width() * 3), box_(box) {}

  int64_t stride() const { return stride_; }
  const ImageBox& box() const { return box_; }
  const uint8_t* at(int64_t x, int64_t y) const {
    return pixels_ + (y - box_.top) * stride_ + (x - box_.left) * 3;
  }

 private:
  const uint8_t* pixels_;
  int64_t stride_;
  ImageBox box_;
};

// The inputs of the outputs, which are neighbours.
Range inputs_of(const Weights& weights) {
  const int64_t first = weights.inputs.front().first;
  return {first, weights.inputs.back().first + weights.inputs.back().count - first};
}

// Other widths for some rows. Pixels are written with a byte of the next, which follows.
Image resize_rows(const View& view, const Weights& weights, const Range& rows) {
  const auto width = static_cast<int64_t>(weights.inputs.size());
  const std::vector<TapGroup> groups = grouped(weights);
  const auto per_output = static_cast<size_t>(weights.stride / TapGroup::kTaps);
  Image out({width, rows.count});
  for (int64_t y = 0; y < rows.count; ++y) {
    uint8_t* target = out.row(y);
    const TapGroup* own = groups.data();
    for (const auto& [start, taps] : weights.inputs) {
      const auto used = static_cast<size_t>((taps + TapGroup::kTaps - 1) / TapGroup::kTaps);
      TapGroup::sum(view.at(start, rows.first + y), {own, used}, weights.rounding, target);
      own += per_output;
      target += 3;
    }
  }
  return out;
}

// Other heights for some columns. Blocks go over the ends of rows: into the next row, which is written later,
// or behind the image.
Image resize_columns(const View& view, const Weights& weights, const Range& columns) {
  Image out({columns.count, static_cast<int64_t>(weights.inputs.size())});
  for (int64_t y = 0; y < out.height(); ++y) {
    const Range& rows = weights.inputs[static_cast<size_t>(y)];
    const uint8_t* const source = view.at(columns.first, rows.first);
    const std::span<const int32_t> own(weights.of(y), static_cast<size_t>(rows.count));
    for (int64_t at = 0; at < columns.count * 3; at += kReach)
      sum_rows(source + at, view.stride(), own, weights.rounding, out.row(y) + at);
  }
  return out;
}

Image copied(const View& view, const ImageBox& box) {
  Image out({box.width, box.height});
  for (int64_t y = 0; y < box.height; ++y)
    std::memcpy(out.row(y), view.at(box.left, box.top + y), static_cast<size_t>(box.width * 3));
  return out;
}

// Each pass computes only what the next needs.
Image rows_then_columns(const View& view, const ResizeOptions& options, const ImageBox& box) {
  const ImageBox whole = view.box();
  const Axis across{whole.width, options.size.width, box.left, box.width};
  const Axis down{whole.height, options.size.height, box.top, box.height};
  if (down.from == down.to) {
    return resize_rows(view, weights_of(across, options.filter, options.style), {box.top, box.height});
  }
  const Weights weights = weights_of(down, options.filter, options.style);
  if (across.from == across.to) return resize_columns(view, weights, {box.left, box.width});
  const Range rows = inputs_of(weights);
  const Image part = resize_rows(view, weights_of(across, options.filter, options.style), rows);
  return resize_columns(View(part, {0, rows.first, box.width, rows.count}), weights, {0, box.width});
}

Image columns_then_rows(const View& view, const ResizeOptions& options, const ImageBox& box) {
  const ImageBox whole = view.box();
  const Axis across{whole.width, options.size.width, box.left, box.width};
  const Axis down{whole.height, options.size.height, box.top, box.height};
  const Weights weights = weights_of(across, options.filter, options.style);
  const Range columns = inputs_of(weights);
  const Image part = resize_columns(view, weights_of(down, options.filter, options.style), columns);
  return resize_rows(View(part, {columns.first, 0, columns.count, box.height}), weights, {0, box.height});
}

bool columns_first(const ImageSize& from, const ImageSize& to, ResizeStyle style) {
  const int64_t narrower = from.width - to.width, lower = from.height - to.height;
  return style == ResizeStyle::pillow13 && lower > 0 && lower > 2 * narrower;
}

}  // namespace

Image resized(const Image& image, const ResizeOptions& options) {
  const ImageSize& size = options.size;
  ImageBox box = options.box;
  if (box.width == 0) box = {0, 0, size.width, size.height};
  TERATRON_ASSERT(image.width() > 0 && image.height() > 0 && box.left >= 0 && box.top >= 0 &&
                      box.height > 0 && box.left + box.width <= size.width &&
                      box.top + box.height <= size.height,
                  "a box beyond {} x {}", size.width, size.height);
  const View view(image);
  if (image.size() == size) return copied(view, box);
  const bool both = image.width() != size.width && image.height() != size.height;
  return both && columns_first(image.size(), size, options.style) ? columns_then_rows(view, options, box)
                                                                  : rows_then_columns(view, options, box);
}

std::optional<ResizeStyle> resize_style_of(std::string_view name) {
  if (name == "pillow13") return ResizeStyle::pillow13;
  if (name == "pillow") return ResizeStyle::pillow;
  if (name == "torchvision") return ResizeStyle::torchvision;
  return std::nullopt;
}

}  // namespace teratron
