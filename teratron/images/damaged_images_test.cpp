// Files of tests/fixtures/vision that are cut off or changed anywhere.
#include <random>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/images/image.h"

namespace teratron {
namespace {

std::string image_file(const std::string& name) {
  return read_image_file(TERATRON_SOURCE_DIR "/tests/fixtures/vision/images/" + name, {});
}

bool is_refused(std::string_view contents) {
  try {
    decode_image(bytes_of(contents), "a", {.max_pixels = 1 << 20});
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    return true;
  }
  return false;
}

TEST(DamagedImages, CutAnywhereAreRefused) {
  for (const char* const name : {"420.jpg", "progressive.jpg", "cmyk.jpg", "rgb.png",
                                 "palette-transparent.png", "alpha.png", "lossless.webp"}) {
    const std::string whole = image_file(name);
    EXPECT_FALSE(is_refused(whole)) << name;
    for (size_t size = 0; size < whole.size(); ++size)
      EXPECT_TRUE(is_refused(std::string_view(whole).substr(0, size))) << name << " of " << size << " bytes";
  }
}

TEST(DamagedImages, PngHasChecksumsOfEveryByte) {
  std::string png = image_file("tiny.png");
  for (char& byte : png) {
    byte ^= 0x10;
    EXPECT_TRUE(is_refused(png)) << &byte - png.data();
    byte ^= 0x10;
  }
}

TEST(DamagedImages, OthersAreRefusedOrDecoded) {
  std::mt19937 random(8);
  for (const char* const name : {"444.jpg", "progressive.jpg", "exif6.jpg", "lossless.webp"}) {
    const std::string whole = image_file(name);
    for (int i = 0; i < 300; ++i) {
      std::string damaged = whole;
      for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = static_cast<char>(random());
      is_refused(damaged);
    }
  }
}

}  // namespace
}  // namespace teratron
