#include "teratron/plan/flops.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

TEST(Flops, CountsForwardAndTwoBackwards) {
  const Operator gemm{.kind = Operator::Kind::gemm, .flops = 100.0};
  const Operator attention{.kind = Operator::Kind::attention, .flops = 20.0, .masked_flops = 10.0};
  const std::vector<Operator> operators = {gemm, attention, gemm};
  EXPECT_EQ(training_flops(operators), 3.0 * 210.0);
  EXPECT_EQ(training_flops(operators, FlopsConvention::full), 3.0 * 220.0);
  EXPECT_EQ(training_flops(operators, FlopsConvention::causal, Weights::frozen), 2.0 * 200.0 + 3.0 * 10.0);
}

TEST(Flops, ThroughputAndPeak) {
  const Throughput rate =
      throughput({.flops = 8e15, .seconds = 2.0, .world_size = 8, .peak_flops_per_gpu = 1e15});
  EXPECT_DOUBLE_EQ(rate.tflops_per_gpu, 500.0);
  EXPECT_DOUBLE_EQ(rate.mfu, 0.5);
  EXPECT_EQ(throughput({.flops = 1.0, .seconds = 0.0}).tflops_per_gpu, 0.0);
  EXPECT_EQ(throughput({.flops = 1.0, .seconds = 1.0}).mfu, 0.0) << "unknown peak";

  EXPECT_EQ(peak_flops("NVIDIA H200", MathMode::half), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", MathMode::half), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3", MathMode::fp8), 1978.9e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", MathMode::half), 312e12);
  EXPECT_FALSE(peak_flops("NVIDIA A100-SXM4-80GB", MathMode::fp8));
  EXPECT_FALSE(peak_flops("cpu", MathMode::fp32));
}

TEST(Flops, KnowsTheMemoryOfGpus) {
  ASSERT_NE(find_gpu("NVIDIA GH200 480GB"), nullptr);
  EXPECT_EQ(find_gpu("NVIDIA GH200 480GB")->name, "GH200") << "not H200";
  EXPECT_EQ(find_gpu("H100")->memory, 79.6);
  EXPECT_EQ(find_gpu("H100 NVL")->memory, 93.6);
  EXPECT_EQ(find_gpu("TPU"), nullptr);
}

}  // namespace
}  // namespace teratron
