#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/kernels/gemm/gemm_heuristic.h"
#include "teratron/testing/linear/linear_activation.h"
#include "teratron/testing/linear/linear_products.h"

namespace teratron {
namespace {

TEST(LinearGemm, MatchesReference) {
  for (const auto type : float_types) {
    check_linear_products({at::kCPU, type, 24, 40, 16});
    check_linear_products({at::kCPU, type, 7, 5, 3, 2});
    check_linear_products({at::kCPU, type, 1027, 72, 97});
    check_linear_products({at::kCPU, type, 131, 72, 97, 2});
    check_strange_factors(at::dtype(type));
  }
}

TEST(LinearGemm, F32UsesOneDnn) {
  const at::Tensor x = at::randn({131, 16}), w = at::randn({16, 8}).t();
  EXPECT_TRUE(cpu::use_linear(x, w)) << "libtorch lacks oneDNN's linear layer, and products take longer";
  EXPECT_LT(relative_error(linear_forward(x, w, {}), at::matmul(f64(x), f64(w).t())), tolerance(at::kFloat));
  EXPECT_FALSE(cpu::use_linear(x.narrow(0, 0, 8), w));
  EXPECT_FALSE(cpu::use_linear(x.to(at::kDouble), w.to(at::kDouble)));
  EXPECT_FALSE(cpu::use_linear(x, w.clone().requires_grad_()));
}

TEST(LinearGemm, HalfSpeedByCpuFeatures) {
  using cpu::half_gemm_speed, cpu::CpuFeatures;
  using enum cpu::HalfGemm;
  const CpuFeatures old, intel{.avx512_bf16 = true}, amd{.is_amd = true, .avx512_bf16 = true},
      other{.is_x86 = false}, amx{.amx_bf16 = true, .avx512_bf16 = true, .avx512_fp16 = true};
  for (const auto& [processor, bf16, f16] : {std::tuple{old, emulated, emulated},
                                             {intel, slow, emulated},
                                             {amd, fast, emulated},
                                             {amx, fast, fast},
                                             {other, fast, fast}}) {
    EXPECT_EQ(half_gemm_speed(at::kBFloat16, processor), bf16);
    EXPECT_EQ(half_gemm_speed(at::kHalf, processor), f16);
  }
}

// Values whose sums are exact in f32, in three chunks of columns.
TEST(LinearGemm, UpcastHalfRoundsOnce) {
  const auto integers = [](at::IntArrayRef sizes) { return at::randint(-8, 9, sizes).to(at::kFloat); };
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {4, 131}) {
      const at::Tensor x = integers({rows, 40'000}), w = integers({40'000, 230}) * 0.25,
                       bias = integers({230});
      const at::Tensor exact = at::addmm(f64(bias), f64(x), f64(w)).to(type);
      const at::Tensor y = cpu::linear(x.to(type), w.to(type).t(), bias.to(type));
      EXPECT_TRUE(same_bits(y, exact)) << at::toString(type) << " " << rows;
    }
  }
}

TEST(LinearGemm, UpcastsHalfWithManyRows) {
  const at::Tensor x = at::randn({64, 16}), w = at::randn({8, 16});
  const at::Tensor narrow = x.to(at::kBFloat16);
  if (!cpu::use_linear(narrow, w.to(at::kBFloat16))) GTEST_SKIP() << "this processor multiplies bf16 fast";
  EXPECT_FALSE(cpu::use_linear(narrow.narrow(0, 0, 7), w.to(at::kBFloat16)));
  EXPECT_FALSE(cpu::use_linear(narrow, w));
  EXPECT_FALSE(cpu::use_linear(narrow, w.to(at::kBFloat16).requires_grad_()));
}

TEST(LinearGemmDeathTest, RejectsMismatchedOperands) {
  const at::Tensor x = at::randn({131, 16}), w = at::randn({8, 16}), bias = at::randn({16});
  if (!cpu::use_linear(x, w)) GTEST_SKIP() << "libtorch lacks oneDNN's linear layer";
  EXPECT_DEATH(linear_forward(x, w, bias.slice(0, 0, 16, 2)), "bias is not contiguous");
  EXPECT_DEATH(linear_forward(x, at::randn({8, 15}), {}), "product of .131, 16. by .15, 8.");
  const at::Tensor dy = at::randn({131, 8}).to(at::kBFloat16), a = x.to(at::kBFloat16);
  EXPECT_DEATH(cpu::weight_gradient(w, dy, a.narrow(0, 0, 130), true), "by .130, 16.");
  EXPECT_DEATH(cpu::weight_gradient(at::randn({7, 16}), dy, a, true), "sum .7, 16.");
}

TEST(LinearGemm, WeightGradientIsIndependentOfThreadCount) {
  if (!cpu::has_brgemm()) GTEST_SKIP() << "oneDNN has no products of blocks for this processor";
  const at::Tensor dy = at::randn({131, 97}).to(at::kBFloat16), x = at::randn({131, 72}).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> sums;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    sums.push_back(at::zeros({97, 72}));
    cpu::weight_gradient(sums.back(), dy, x, true);
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(sums[0], sums[1]));
}

// Values that are exact in bf16, with products and sums exact in f32.
TEST(LinearGemm, Bf16WeightGradientAccumulatesInF32) {
  const auto integers = [](int64_t rows, int64_t columns) {
    return at::randint(-8, 9, {rows, columns}).to(at::kBFloat16);
  };
  std::vector<decltype(&cpu::weight_gradient)> ways{
      [](const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, bool add) {
        linear_weight_gradient_(sum, dy, x, add);
      }};
  if (cpu::has_brgemm()) ways.push_back(cpu::weight_gradient);
  for (const int64_t tokens : {1, 2, 64, 65, 512, 513, 1024, 1030}) {
    const at::Tensor dy = integers(tokens, 71), x = integers(tokens, 65);
    const at::Tensor exact = at::matmul(f64(dy).t(), f64(x));
    for (const auto& way : ways) {
      const at::Tensor sum = at::full({71, 65}, 1000.f);
      way(sum, dy, x, true);
      EXPECT_TRUE(at::equal(f64(sum), exact + 1000)) << tokens;
      way(sum, dy, x, false);
      EXPECT_TRUE(at::equal(f64(sum), exact)) << tokens;
    }
  }
}

TEST(LinearGemmDeathTest, RejectsOutputsOfAnotherSize) {
  const at::Tensor x = at::randn({24, 16}), w = at::randn({8, 16});
  EXPECT_DEATH(linear_forward(x, w, {}, at::empty({24, 9})), "y has 216 elements, not 192");
  EXPECT_DEATH(linear_input_gradient(at::randn({24, 8}), w, at::empty({24, 17})),
               "dx has 408 elements, not 384");
}

TEST(LinearAdd, MatchesReference) {
  for (const auto type : float_types) {
    const at::Tensor x = randn({24, 40}, type), w = randn({16, 40}, type), residual = randn({24, 16}, type),
                     bias = randn({16}, type);
    const at::Tensor exact = f64(residual) + at::matmul(f64(x), f64(w).t());
    EXPECT_CLOSE(linear_add(x, w, {}, residual), exact, type);
    EXPECT_CLOSE(linear_add(x, w, bias, residual), exact + f64(bias), type);
  }
}

TEST(AddedProduct, IsAddedToEveryLinear) {
  const at::Tensor x = randn({24, 40}, at::kDouble), w = randn({32, 40}, at::kDouble),
                   bias = randn({32}, at::kDouble), u = randn({24, 3}, at::kDouble),
                   b = randn({32, 3}, at::kDouble), w2 = randn({40, 16}, at::kDouble),
                   a = randn({3, 16}, at::kDouble);
  const at::Tensor y = linear_forward(x, w, bias), expected = y + at::matmul(u, b.t());
  add_product_(y, {u, b});
  EXPECT_CLOSE(y, expected, at::kDouble);
  const auto [activated, z] = linear_activation({x, w, bias, {u, b}}, Activation::swiglu, true);
  EXPECT_CLOSE(z, expected, at::kDouble);
  EXPECT_CLOSE(activated, activation_forward(expected, {}, Activation::swiglu), at::kDouble);
  const at::Tensor da = at::matmul(x, w2) + at::matmul(u, a);
  const ActivationGradients dz =
      linear_activation_backward({x, w2, {u, a.t()}}, z, Activation::swiglu, GradSink{});
  const ActivationGradients unfused =
      activation_backward(da, z, {}, Activation::swiglu, {.dbias = GradSink{}});
  EXPECT_CLOSE(dz.dx, unfused.dx, at::kDouble);
  EXPECT_CLOSE(dz.dbias, unfused.dbias, at::kDouble);
}

TEST(LinearActivation, MatchesUnfused) {
  for (const auto type : float_types) {
    for (const Activation activation : activations) {
      check_linear_activation({at::kCPU, type, activation, 24, 16, 40});
    }
  }
}

using cuda::GemmCandidate;
using cuda::GemmSize;
using cuda::select_gemm;

constexpr int sm_count = 132;
constexpr GemmCandidate wide{66, 128, 256, 1}, high{66, 256, 128, 1}, overlapped{66, 128, 176, 1},
    unknown{66, 192, 192, 1};

TEST(SelectGemm, PrefersOverlappingTilesForSmallK) {
  const std::vector<GemmCandidate> candidates{unknown, high, wide, overlapped};
  EXPECT_EQ(select_gemm(candidates, {32768, 50304, 2 * 768}, sm_count), 3U);
  EXPECT_EQ(select_gemm(candidates, {16384, 4096, 2 * 14336}, sm_count), 2U);
  EXPECT_EQ(select_gemm(candidates, {32768, 50304, 2 * 768, true}, sm_count), 2U) << "a bias to add";
}

// 2048 columns are 12 tiles of 176 with a remainder, or 8 of 256 without.
TEST(SelectGemm, AccountsForTileQuantization) {
  const std::vector<GemmCandidate> candidates{overlapped, wide};
  EXPECT_EQ(select_gemm(candidates, {16384, 2048, 2 * 2048}, sm_count), 1U);
  EXPECT_EQ(select_gemm(candidates, {16384, 12 * 176, 2 * 2048}, sm_count), 0U);
}

TEST(SelectGemm, FallsBackToTheFirst) {
  const GemmSize large{16384, 8192, 4096}, small{512, 512, 4096};
  EXPECT_EQ(select_gemm(std::vector{unknown, unknown}, large, sm_count), 0U);
  EXPECT_EQ(select_gemm(std::vector{unknown, wide}, large, sm_count), 1U);
  EXPECT_EQ(select_gemm(std::vector{unknown, wide}, small, sm_count), 0U) << "too few tiles";
  const GemmCandidate split{66, 192, 192, 5}, old{13, 128, 256, 1}, wide_in_parts{66, 128, 256, 2};
  EXPECT_EQ(select_gemm(std::vector{split, wide}, large, sm_count), 0U);
  EXPECT_EQ(select_gemm(std::vector{unknown, old}, large, sm_count), 0U);
  EXPECT_EQ(select_gemm(std::vector{unknown, wide_in_parts}, large, sm_count), 0U);
}

}  // namespace
}  // namespace teratron
