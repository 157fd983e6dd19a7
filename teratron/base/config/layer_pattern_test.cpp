#include "teratron/base/config/layer_pattern.h"

#include <string>

#include <gtest/gtest.h>

namespace teratron {
namespace {

using List = std::vector<int64_t>;

// Strings that Megatron-LM's users write, and what its evaluation gives.
TEST(LayerPattern, EqualsPython) {
  EXPECT_EQ(parse_layer_pattern("1", 3), (List{1, 1, 1}));
  EXPECT_EQ(parse_layer_pattern("2", 5), (List{1, 0, 1, 0, 1}));
  EXPECT_EQ(parse_layer_pattern("([0]+[1]*7)", 8), (List{0, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(parse_layer_pattern("([1]*3+[0]*1)*3", 12), (List{1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0}));
  EXPECT_EQ(parse_layer_pattern(" 2*[0, 1] + [1]", 5), (List{0, 1, 0, 1, 1}));
  EXPECT_EQ(parse_layer_pattern("[1,0,1]", 3), (List{1, 0, 1}));
}

TEST(LayerPattern, HasOneSpelling) {
  EXPECT_EQ(to_layer_pattern({1, 1, 1}), "1");
  EXPECT_EQ(to_layer_pattern({0, 1, 1}), "[0,1,1]");
  EXPECT_EQ(parse_layer_pattern(to_layer_pattern({0, 0, 1}), 3), (List{0, 0, 1}));
}

TEST(LayerPattern, RefusesOthers) {
  for (const char* text : {"", "0", "-1", "[1,0]", "[1,0,1", "[2,0,1]", "1,0,1", "[1]*3;", "[1]*", "[1]*-3",
                           "[1]*99999999999999", "([1]*3", "[0]*2+", "os.system", "3*3"}) {
    EXPECT_EQ(parse_layer_pattern(text, 3), std::nullopt) << text;
  }
  EXPECT_EQ(parse_layer_pattern(std::string(100000, '('), 3), std::nullopt);
}

}  // namespace
}  // namespace teratron
