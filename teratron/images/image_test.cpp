#include "teratron/images/image.h"

#include <functional>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/images/orientation.h"
#include "teratron/images/pixel_arithmetic.h"

namespace teratron {
namespace {

using Bytes = std::vector<uint8_t>;

std::string refusal(const std::string& contents, const ImageLimits& limits = {}) {
  try {
    decode_image(bytes_of(contents), "a.png", limits);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    EXPECT_NE(std::string(error.what()).find("a.png"), std::string::npos);
    return error.what();
  }
  return "";
}

void put(std::string& out, uint32_t value, int size, bool big_endian) {
  for (int i = 0; i < size; ++i) out += static_cast<char>(value >> 8 * (big_endian ? size - 1 - i : i));
}

struct Entry {
  uint32_t tag = 0x112, type = 3, count = 1, value = 6;
};

std::string exif(const std::vector<Entry>& entries, bool big_endian, uint32_t offset = 8) {
  std::string out = big_endian ? "MM" : "II";
  put(out, 42, 2, big_endian);
  put(out, offset, 4, big_endian);
  put(out, static_cast<uint32_t>(entries.size()), 2, big_endian);
  for (const Entry& entry : entries) {
    put(out, entry.tag, 2, big_endian);
    put(out, entry.type, 2, big_endian);
    put(out, entry.count, 4, big_endian);
    const int size = entry.type == 3 && entry.count == 1 ? 2 : 4;
    put(out, entry.value, size, big_endian);
    out.append(static_cast<size_t>(4 - size), '\0');
  }
  return out;
}

int orientation(const std::string& data, const std::string& xmp = "") {
  return orientation_of(bytes_of(data), bytes_of(xmp));
}

TEST(Orientation, FromExif) {
  for (const bool big_endian : {false, true}) {
    EXPECT_EQ(orientation(exif({{}}, big_endian)), 6);
    EXPECT_EQ(orientation(std::string("Exif\0\0", 6) + exif({{.tag = 1}, {.value = 8}}, big_endian)), 8);
    EXPECT_EQ(orientation(exif({{.type = 4, .value = 3}}, big_endian)), 3);
    EXPECT_EQ(orientation(exif({{.value = 9}}, big_endian)), 1);
    EXPECT_EQ(orientation(exif({{.type = 5}}, big_endian)), 1) << "a fraction";
    EXPECT_EQ(orientation(exif({{.count = 0}}, big_endian)), 1);
    EXPECT_EQ(orientation(exif({{.count = 3, .value = 0xfffffff0}}, big_endian)), 1) << "beyond the end";
    EXPECT_EQ(orientation(exif({{}}, big_endian, 0xffffffff)), 1);
    const std::string whole = exif({{.tag = 1}, {}}, big_endian);
    for (size_t size = 0; size + 2 < whole.size(); ++size)
      EXPECT_EQ(orientation(whole.substr(0, size)), 1) << size;
  }
  EXPECT_EQ(orientation("IIxx"), 1);
}

TEST(Orientation, FromXmpWithoutExif) {
  EXPECT_EQ(orientation("", "<x tiff:Orientation=\"8\"/>"), 8);
  EXPECT_EQ(orientation("", "tiff:Orientation tiff:Orientation>3<"), 3);
  EXPECT_EQ(orientation(exif({{}}, true), "tiff:Orientation>3<"), 6);
  EXPECT_EQ(orientation("", "tiff:Orientation=\""), 1);
}

TEST(Orientation, Turns) {
  //  a b
  //  c d
  //  e f
  const std::string turns[] = {"abcdef", "badcfe", "fedcba", "efcdab",
                               "acebdf", "ecafdb", "fdbeca", "bdface"};
  for (int o = 1; o <= 8; ++o) {
    Image image({2, 3});
    for (int i = 0; i < 18; ++i) image.row(0)[i] = static_cast<uint8_t>("abcdef"[i / 3] + i % 3 * 10);
    const Image out = turned(std::move(image), o);
    EXPECT_EQ(out.size(), (o >= 5 ? ImageSize{3, 2} : ImageSize{2, 3}));
    for (int i = 0; i < 18; ++i)
      EXPECT_EQ(out.row(0)[i], turns[o - 1][static_cast<size_t>(i / 3)] + i % 3 * 10) << o << " " << i;
  }
}

TEST(Pixels, TransparencyOverWhite) {
  for (uint32_t s = 0; s < 256; ++s) {
    EXPECT_EQ(over_white(s, 255), s);
    EXPECT_EQ(over_white(s, 0), 255);
    for (uint32_t a = 0; a < 256; ++a) {
      const double exact = (s * a + 255.0 * (255 - a)) / 255;
      EXPECT_NEAR(over_white(s, a), exact, 0.51) << s << " " << a;
    }
  }
}

TEST(Pixels, InvertedCmyk) {
  const Bytes cmyk = {255, 255, 255, 255, 0, 128, 255, 255, 255, 255, 255, 0, 100, 200, 50, 180};
  Bytes rgb(12);
  inverted_cmyk_to_rgb(cmyk.data(), 4, rgb.data());
  EXPECT_EQ(rgb, (Bytes{255, 255, 255, 0, 128, 255, 0, 0, 0, 71, 141, 35}));
}

TEST(Image, RefusesWhatIsNoImage) {
  EXPECT_NE(refusal("").find("empty"), std::string::npos);
  EXPECT_NE(refusal("GIF89a").find("neither JPEG, PNG nor WebP"), std::string::npos);
  EXPECT_NE(refusal("\xff\xd8\xff\xd9").find("cannot read this JPEG"), std::string::npos);
  EXPECT_NE(refusal("\x89PNG\r\n\x1a\n").find("cannot read this PNG"), std::string::npos);
  EXPECT_NE(refusal(std::string("RIFF\x04\0\0\0WEBP", 12)).find("cannot read this WebP"), std::string::npos);
  EXPECT_NE(refusal(std::string(100, 'x'), {.max_file_bytes = 99}).find("100 bytes, more than"),
            std::string::npos);
}

TEST(Image, LimitsComeFromTheHeader) {
  const auto png = [](uint32_t width, uint32_t height) {
    std::string out("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    put(out, width, 4, true);
    put(out, height, 4, true);
    return out + std::string("\x08\x02\0\0\0crc_", 9);
  };
  EXPECT_NE(refusal(png(0, 5)).find("0 x 5 pixels"), std::string::npos);
  EXPECT_NE(refusal(png(1, 65501)).find("1 x 65501 pixels; a side may have 65500"), std::string::npos);
  EXPECT_NE(refusal(png(20000, 10000)).find("--max-image-pixels"), std::string::npos);
  EXPECT_NE(refusal(png(10, 11), {.max_pixels = 109}).find("110 in all, more than 109"), std::string::npos);
  EXPECT_NE(refusal(png(10000, 10000)).find("10000 x 10000 pixels cannot be in 33 bytes"), std::string::npos);
}

}  // namespace
}  // namespace teratron
