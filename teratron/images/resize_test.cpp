#include "teratron/images/resize.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace teratron {
namespace {

using Bytes = std::vector<uint8_t>;

Image pattern(ImageSize size) {
  Image image(size);
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x) {
      for (int64_t c = 0; c < 3; ++c)
        image.row(y)[x * 3 + c] = static_cast<uint8_t>(x * x * 37 + y * 59 + x * y * 11 + c * 101);
    }
  }
  return image;
}

Bytes pixels(const Image& image) {
  return {image.bytes().begin(), image.bytes().end()};
}

// Printed by Pillow 13.
TEST(Resize, AsPillow) {
  const Image wide = pattern({5, 4}), tall = pattern({3, 4});
  EXPECT_EQ(pixels(resized(wide, {.size = {3, 3}, .filter = ResizeFilter::bilinear})),
            (Bytes{35,  136, 160, 132, 173, 117, 108, 133, 54,  112, 158, 58,  130, 103,
                   104, 98,  71,  172, 188, 77,  134, 127, 172, 90,  88,  189, 111}));
  EXPECT_EQ(pixels(resized(wide, {.size = {3, 3}})),
            (Bytes{26,  135, 171, 138, 181, 122, 114, 134, 39,  113, 166, 45,  132, 93,
                   104, 97,  60,  184, 199, 67,  143, 125, 178, 87,  79,  204, 105}));
  EXPECT_EQ(pixels(resized(tall, {.size = {5, 3}})),
            (Bytes{8,   108, 147, 19,  129, 167, 50,  166, 189, 135, 191, 149, 188, 204, 119,
                   85,  205, 21,  108, 170, 44,  142, 115, 79,  144, 105, 87,  142, 104, 89,
                   161, 75,  107, 196, 63,  142, 234, 64,  180, 153, 165, 99,  95,  233, 41}));
}

double weight_at(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::bilinear) return std::max(0.0, 1.0 - x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0.0;
}

/// One axis in the plainest way; `at(i, x)` is the input x of line i.
template <class At>
std::vector<Bytes> plain_axis(int64_t lines, int64_t from, int64_t to, const ResizeOptions& options, At at) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), wide = std::max(1.0, scale);
  const double support = wide * (options.filter == ResizeFilter::bicubic ? 2 : 1);
  std::vector<std::vector<double>> all;
  std::vector<int64_t> lows;
  double most = 0;
  for (int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t high = std::min(from, static_cast<int64_t>(center + support + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (int64_t x = low; x < high; ++x) {
      weights.push_back(weight_at(options.filter, (static_cast<double>(x) - center + 0.5) * (1.0 / wide)));
      sum += weights.back();
    }
    for (double& weight : weights) most = std::max(most, weight /= sum);
    all.push_back(weights);
    lows.push_back(low);
  }
  int bits = options.style == ResizeStyle::torchvision ? 0 : 22;
  while (options.style == ResizeStyle::torchvision && bits < 22 &&
         std::floor(0.5 + std::ldexp(most, bits + 1)) < 32768)
    ++bits;
  std::vector<Bytes> out(static_cast<size_t>(lines));
  for (int64_t line = 0; line < lines; ++line) {
    for (size_t i = 0; i < all.size(); ++i) {
      int64_t sum = int64_t{1} << (bits - 1);
      for (size_t j = 0; j < all[i].size(); ++j)
        sum += std::lround(std::ldexp(all[i][j], bits)) * at(line, lows[i] + static_cast<int64_t>(j));
      out[static_cast<size_t>(line)].push_back(
          static_cast<uint8_t>(std::clamp<int64_t>(sum >> bits, 0, 255)));
    }
  }
  return out;
}

/// All passes over the whole image, of one channel.
Bytes plain_channel(const Image& image, const ResizeOptions& options, int64_t channel) {
  const int64_t w = image.width(), h = image.height();
  const ImageSize to = options.size;
  std::vector<Bytes> rows(static_cast<size_t>(h));
  for (int64_t y = 0; y < h; ++y) {
    for (int64_t x = 0; x < w; ++x) rows[static_cast<size_t>(y)].push_back(image.row(y)[x * 3 + channel]);
  }
  const auto across = [&] {
    if (w == to.width) return;
    rows = plain_axis(static_cast<int64_t>(rows.size()), w, to.width, options, [&](int64_t y, int64_t x) {
      return rows[static_cast<size_t>(y)][static_cast<size_t>(x)];
    });
  };
  const auto down = [&] {
    if (h == to.height) return;
    const auto columns = plain_axis(
        static_cast<int64_t>(rows[0].size()), h, to.height, options,
        [&](int64_t x, int64_t y) { return rows[static_cast<size_t>(y)][static_cast<size_t>(x)]; });
    rows.assign(static_cast<size_t>(to.height), {});
    for (const Bytes& column : columns) {
      for (size_t y = 0; y < column.size(); ++y) rows[y].push_back(column[y]);
    }
  };
  const bool columns_first =
      options.style == ResizeStyle::pillow13 && to.height < h && h - to.height > 2 * (w - to.width);
  if (columns_first) down();
  across();
  if (!columns_first) down();
  Bytes out;
  for (int64_t y = 0; y < options.box.height; ++y) {
    const Bytes& row = rows[static_cast<size_t>(options.box.top + y)];
    out.insert(out.end(), row.begin() + options.box.left, row.begin() + options.box.left + options.box.width);
  }
  return out;
}

TEST(Resize, BoxesOfRandomSizesInEveryStyle) {
  std::mt19937 random(5);
  const auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
  for (int i = 0; i < 300; ++i) {
    Image image({upto(70), upto(70)});
    for (int64_t j = 0; j < image.size().pixels() * 3; ++j)
      image.row(0)[j] = static_cast<uint8_t>(i % 3 == 0 ? (random() % 2) * 255 : random());
    ResizeOptions options{.size = {upto(60), upto(60)}};
    if (i % 5 == 0) options.size.width = image.width();
    if (i % 7 == 0) options.size.height = image.height();
    options.box.width = upto(options.size.width);
    options.box.height = upto(options.size.height);
    options.box.left = upto(options.size.width - options.box.width + 1) - 1;
    options.box.top = upto(options.size.height - options.box.height + 1) - 1;
    options.filter = i % 2 == 0 ? ResizeFilter::bicubic : ResizeFilter::bilinear;
    options.style = static_cast<ResizeStyle>(i % 3);
    const Image out = resized(image, options);
    ASSERT_EQ(out.size(), (ImageSize{options.box.width, options.box.height}));
    for (int64_t c = 0; c < 3; ++c) {
      Bytes channel;
      for (int64_t j = 0; j < out.size().pixels(); ++j) channel.push_back(out.row(0)[j * 3 + c]);
      ASSERT_EQ(channel, plain_channel(image, options, c)) << i << " channel " << c;
    }
  }
}

}  // namespace
}  // namespace teratron
