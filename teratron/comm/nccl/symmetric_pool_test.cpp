#include "teratron/comm/nccl/symmetric_pool.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
const int one_stream = 0, another = 0;

TEST(NumberedBuffers, ServeFewSizes) {
  EXPECT_EQ(NumberedBuffers::rounded(0), kMiB);
  EXPECT_EQ(NumberedBuffers::rounded(kMiB), kMiB);
  EXPECT_EQ(NumberedBuffers::rounded(kMiB + 1), 2 * kMiB);
  EXPECT_EQ(NumberedBuffers::rounded(65 * kMiB), 128 * kMiB);
  EXPECT_EQ(NumberedBuffers::rounded(256 * kMiB), 256 * kMiB);
  EXPECT_EQ(NumberedBuffers::rounded(256 * kMiB + 1), 258 * kMiB);
  EXPECT_EQ(NumberedBuffers::rounded(16'001 * kMiB), 16'002 * kMiB);
}

TEST(NumberedBuffers, TheFirstFreeOneServesWhateverCameBackLast) {
  for (const bool first_comes_back_first : {false, true}) {
    NumberedBuffers buffers;
    EXPECT_EQ(buffers.take(kMiB, &one_stream), std::nullopt);
    const size_t a = buffers.add(kMiB, &one_stream), b = buffers.add(kMiB, &one_stream);
    EXPECT_EQ(buffers.take(kMiB, &one_stream), std::nullopt);
    buffers.give_back(first_comes_back_first ? a : b);
    buffers.give_back(first_comes_back_first ? b : a);
    EXPECT_EQ(buffers.take(kMiB, &one_stream), a);
    EXPECT_EQ(buffers.take(kMiB, &one_stream), b);
    EXPECT_EQ(buffers.take(kMiB, &one_stream), std::nullopt);
  }
}

TEST(NumberedBuffers, ServeTheirSizeAndStream) {
  NumberedBuffers buffers;
  buffers.give_back(buffers.add(2 * kMiB, &one_stream));
  EXPECT_EQ(buffers.take(kMiB, &one_stream), std::nullopt);
  EXPECT_EQ(buffers.take(2 * kMiB, &another), std::nullopt);
  EXPECT_EQ(buffers.take(2 * kMiB, &one_stream), 0);
}

}  // namespace
}  // namespace teratron
