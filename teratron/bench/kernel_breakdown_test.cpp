#include "teratron/bench/kernel_breakdown.h"

#include <numeric>

#include <gtest/gtest.h>

namespace teratron {
namespace {

double ms_of(const KernelBreakdown& breakdown, KernelCategory category) {
  return breakdown.ms[static_cast<size_t>(category)];
}

TEST(KernelBreakdown, RecognizesTheKernelsOfLibraries) {
  EXPECT_EQ(kernel_category("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"), KernelCategory::gemm);
  EXPECT_EQ(kernel_category("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"), KernelCategory::gemm);
  EXPECT_EQ(kernel_category("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob"),
            KernelCategory::attention);
  EXPECT_EQ(kernel_category("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>"),
            KernelCategory::attention);
  EXPECT_EQ(kernel_category("void cudnn::fusion::convert_dq_to_16bits<true>"), KernelCategory::attention);
  EXPECT_EQ(kernel_category("void pytorch_flash::flash_bwd_kernel<Flash_bwd_kernel_traits<64, 128>>"),
            KernelCategory::attention);
  EXPECT_EQ(kernel_category("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"),
            KernelCategory::communication);
  EXPECT_EQ(kernel_category("Memcpy PtoP (Device -> Device)"), KernelCategory::communication);
  EXPECT_EQ(kernel_category("Memcpy DtoD (Device -> Device)"), KernelCategory::memory_bound);
  EXPECT_EQ(kernel_category("void teratron::cuda::optimizer::adam_kernel<float, bf16>"),
            KernelCategory::optimizer);
  EXPECT_EQ(kernel_category("void at::native::vectorized_elementwise_kernel<8>"),
            KernelCategory::memory_bound);
}

TEST(KernelBreakdown, CountsOnlyExposedCommunication) {
  // A GEMM at 0..4 ms, overlapping communication at 2..7 ms, idle until 9, an elementwise kernel until 10.
  const KernelBreakdown breakdown = break_down({{"ncclDevKernel_AllReduce", 2'000'000, 7'000'000},
                                                {"nvjet_sm90", 0, 4'000'000},
                                                {"elementwise_kernel", 9'000'000, 10'000'000}});
  EXPECT_DOUBLE_EQ(ms_of(breakdown, KernelCategory::gemm), 4.0);
  EXPECT_DOUBLE_EQ(ms_of(breakdown, KernelCategory::communication), 3.0);
  EXPECT_DOUBLE_EQ(breakdown.communication_ms, 5.0);
  EXPECT_DOUBLE_EQ(breakdown.idle_ms, 2.0);
  EXPECT_DOUBLE_EQ(ms_of(breakdown, KernelCategory::memory_bound), 1.0);
  EXPECT_DOUBLE_EQ(breakdown.total_ms, 10.0);
  const double sum = std::accumulate(breakdown.ms.begin(), breakdown.ms.end(), breakdown.idle_ms);
  EXPECT_DOUBLE_EQ(sum, breakdown.total_ms);
}

TEST(KernelBreakdown, ShortNamesDropNamespaces) {
  EXPECT_EQ(short_kernel_name(
                "void teratron::cuda::(anonymous namespace)::sum<teratron::cuda::Pack<8> >(void const*)"),
            "sum<Pack<8> >(void const*)");
  EXPECT_EQ(short_kernel_name("nvjet_sm90_tst_256x128"), "nvjet_sm90_tst_256x128");
}

TEST(KernelBreakdown, TotalsAreSortedByTime) {
  const auto totals = kernel_totals({{"a", 0, 1'000'000}, {"b", 0, 3'000'000}, {"a", 5'000'000, 6'000'000}});
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].name, "b");
  EXPECT_EQ(totals[1].calls, 2);
  EXPECT_DOUBLE_EQ(totals[1].ms, 2.0);
}

TEST(KernelBreakdown, NoKernels) {
  EXPECT_DOUBLE_EQ(break_down({}).total_ms, 0.0);
  EXPECT_TRUE(kernel_totals({}).empty());
}

}  // namespace
}  // namespace teratron
