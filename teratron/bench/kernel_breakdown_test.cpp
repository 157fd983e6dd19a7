#include "teratron/bench/kernel_breakdown.h"

#include <numeric>

#include <gtest/gtest.h>

namespace teratron {
namespace {

double of(const KernelBreakdown& breakdown, KernelKind kind) {
  return breakdown.ms[static_cast<size_t>(kind)];
}

TEST(KernelBreakdown, KnowsTheLibrariesNames) {
  EXPECT_EQ(kind_of_kernel("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"), KernelKind::gemm);
  EXPECT_EQ(kind_of_kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"), KernelKind::gemm);
  EXPECT_EQ(kind_of_kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob"),
            KernelKind::attention);
  EXPECT_EQ(kind_of_kernel("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>"),
            KernelKind::attention);
  EXPECT_EQ(kind_of_kernel("void cudnn::fusion::convert_dq_to_16bits<true>"), KernelKind::attention);
  EXPECT_EQ(kind_of_kernel("void pytorch_flash::flash_bwd_kernel<Flash_bwd_kernel_traits<64, 128>>"),
            KernelKind::attention);
  EXPECT_EQ(kind_of_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"),
            KernelKind::communication);
  EXPECT_EQ(kind_of_kernel("Memcpy PtoP (Device -> Device)"), KernelKind::communication);
  EXPECT_EQ(kind_of_kernel("Memcpy DtoD (Device -> Device)"), KernelKind::memory_bound);
  EXPECT_EQ(kind_of_kernel("void teratron::cuda::adam_kernel<float, bf16>"), KernelKind::optimizer);
  EXPECT_EQ(kind_of_kernel("void at::native::vectorized_elementwise_kernel<8>"), KernelKind::memory_bound);
}

TEST(KernelBreakdown, CountsCommunicationOnlyWhereItIsExposed) {
  // A GEMM of 0..4 ms, communication 2..7 ms beside it, silence until 9, an elementwise kernel until 10.
  const KernelBreakdown breakdown = break_down({{"ncclDevKernel_AllReduce", 2'000'000, 7'000'000},
                                                {"nvjet_sm90", 0, 4'000'000},
                                                {"elementwise_kernel", 9'000'000, 10'000'000}});
  EXPECT_DOUBLE_EQ(of(breakdown, KernelKind::gemm), 4.0);
  EXPECT_DOUBLE_EQ(of(breakdown, KernelKind::communication), 3.0);
  EXPECT_DOUBLE_EQ(breakdown.communication_ms, 5.0);
  EXPECT_DOUBLE_EQ(breakdown.idle_ms, 2.0);
  EXPECT_DOUBLE_EQ(of(breakdown, KernelKind::memory_bound), 1.0);
  EXPECT_DOUBLE_EQ(breakdown.total_ms, 10.0);
  const double sum = std::accumulate(breakdown.ms.begin(), breakdown.ms.end(), breakdown.idle_ms);
  EXPECT_DOUBLE_EQ(sum, breakdown.total_ms);
}

TEST(KernelBreakdown, ShortNamesTellKernelsApart) {
  EXPECT_EQ(short_kernel_name(
                "void teratron::cuda::(anonymous namespace)::sum<teratron::cuda::Pack<8> >(void const*)"),
            "sum<Pack<8> >(void const*)");
  EXPECT_EQ(short_kernel_name("nvjet_sm90_tst_256x128"), "nvjet_sm90_tst_256x128");
}

TEST(KernelBreakdown, TotalsAreSortedByTime) {
  const auto totals =
      total_by_kernel({{"a", 0, 1'000'000}, {"b", 0, 3'000'000}, {"a", 5'000'000, 6'000'000}});
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].name, "b");
  EXPECT_EQ(totals[1].calls, 2);
  EXPECT_DOUBLE_EQ(totals[1].ms, 2.0);
}

TEST(KernelBreakdown, NothingRan) {
  EXPECT_DOUBLE_EQ(break_down({}).total_ms, 0.0);
  EXPECT_TRUE(total_by_kernel({}).empty());
}

}  // namespace
}  // namespace teratron
