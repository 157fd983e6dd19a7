#include "teratron/plan/roofline.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

TEST(Roofline, TakesTheSlowerOfComputeAndMemory) {
  const Gpu gpu{.name = "test", .fp32 = 1.0, .half = 10.0, .fp8 = 20.0, .bandwidth = 5.0, .memory = 1.0};
  Operator gemm{.kind = Operator::Kind::gemm, .flops = 100.0, .bytes = 5.0};
  const auto seconds = [&](const Operator& one) {
    return roofline_seconds(std::span(&one, 1), gpu, MathMode::half);
  };
  EXPECT_EQ(seconds(gemm), 3 * 10.0);
  gemm.fp8 = true;
  EXPECT_EQ(seconds(gemm), 3 * 5.0);
  gemm.bytes = 50.0;
  EXPECT_EQ(seconds(gemm), 3 * 10.0) << "the memory takes longer";
  gemm.recompute_unit = 0;
  EXPECT_EQ(seconds(gemm), 4 * 10.0);
  const Operator attention{.kind = Operator::Kind::attention, .flops = 100.0, .masked_flops = 50.0};
  EXPECT_EQ(seconds(attention), 3.5 * 5.0) << "half of the scores are masked";
}

}  // namespace
}  // namespace teratron
