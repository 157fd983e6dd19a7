#include <cstdlib>
#include <numeric>

#include <gtest/gtest.h>

#include "teratron/data/numpy_random.h"
#include "teratron/data/torch_randperm.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;

double from_hex(const json& text) {
  return std::strtod(text.get<std::string>().c_str(), nullptr);
}

std::vector<int32_t> shuffled(uint32_t seed, int32_t n) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandom(seed).shuffle(std::span(values));
  return values;
}

TEST(NumpyRandom, MatchesNumpy) {
  const std::vector<double> thirds = {1.0, 1.0 / 2, 1.0 / 3};
  for (const json& c : testing::read_json(fixture("rng/numpy_randomstate.json"))) {
    const auto seed = c["seed"].get<uint32_t>();
    NumpyRandom raw(seed), sample(seed), choice(seed), geometric(seed);
    for (const json& value : c["uint32"]) EXPECT_EQ(raw.next_u32(), value.get<uint32_t>());
    for (const json& value : c["random_sample"]) EXPECT_EQ(sample.random_sample(), from_hex(value));
    for (const json& value : c["choice_3"]) EXPECT_EQ(choice.choice(thirds) + 1, value.get<int64_t>());
    for (const json& value : c["geometric_0.2"]) EXPECT_EQ(geometric.geometric(0.2), value.get<int64_t>());
    for (const int n : {1, 2, 3, 10, 33}) {
      EXPECT_EQ(shuffled(seed, n), c["shuffle_" + std::to_string(n)].get<std::vector<int32_t>>());
    }
    for (const int n : {1000, 70000}) {
      EXPECT_EQ(testing::sha256_of(shuffled(seed, n)), c["shuffle_" + std::to_string(n) + "_int32_sha256"]);
    }
    NumpyRandom integers(seed);  // one stream, in this order
    for (const int high : {2, 3, 4, 9, 30522}) {
      for (const json& value : c["randint_1_high"][std::to_string(high)]) {
        EXPECT_EQ(integers.randint(1, high), value.get<int64_t>());
      }
    }
  }
}

TEST(NumpyRandom, MixedDrawsOfOneStream) {
  const std::vector<double> thirds = {1.0, 1.0 / 2, 1.0 / 3};
  for (const json& c : testing::read_json(fixture("rng/numpy_randomstate.json"))) {
    NumpyRandom random(c["seed"].get<uint32_t>());
    for (const json& row : c["mixed"]) {
      std::vector<int> values(7);
      std::iota(values.begin(), values.end(), 0);
      random.shuffle(std::span(values));
      EXPECT_EQ(values, row[0].get<std::vector<int>>());
      EXPECT_EQ(random.randint(1, 5), row[1].get<int64_t>());
      EXPECT_EQ(random.random_sample(), from_hex(row[2]));
      EXPECT_EQ(random.geometric(0.2), row[3].get<int64_t>());
      EXPECT_EQ(random.choice(thirds) + 1, row[4].get<int64_t>());
      EXPECT_EQ(random.randint(0, 30522), row[5].get<int64_t>());
    }
  }
}

TEST(NumpyRandom, PublishedValues) {
  EXPECT_EQ(shuffled(0, 10), (std::vector<int32_t>{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
  EXPECT_EQ(shuffled(1234, 10), (std::vector<int32_t>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  EXPECT_EQ(NumpyRandom(1234).next_u32(), 822569775u);
  EXPECT_EQ(NumpyRandom(1234).random_sample(), 0.1915194503788923);
}

TEST(NumpyRandom, IntervalsBeyond32BitsAreCovered) {
  NumpyRandom random(3);
  const uint64_t last = (uint64_t{1} << 63) + 5;
  bool above = false;
  for (int i = 0; i < 200; ++i) {
    const uint64_t value = random.interval(last);
    EXPECT_LE(value, last);
    above = above || value > 0xffffffffu;
  }
  EXPECT_TRUE(above);
}

TEST(TorchRandperm, MatchesTorch) {
  for (const json& c : testing::read_json(fixture("rng/torch_randperm.json"))) {
    const auto perm = torch_randperm(c["n"].get<int64_t>(), c["seed"].get<uint64_t>());
    EXPECT_EQ(perm, c["perm"].get<std::vector<int64_t>>());
    EXPECT_EQ(testing::sha256_of(perm), c["sha256_int64"]);
  }
}

}  // namespace
}  // namespace teratron
