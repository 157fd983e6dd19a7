#include "teratron/kernels/gemm/gemm_choice.h"
#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/testing/linear_products.h"

namespace teratron {
namespace {

TEST(LinearProducts, AreTheSums) {
  for (const auto type : float_types) {
    check_linear_products({at::kCPU, type, 24, 40, 16});
    check_linear_products({at::kCPU, type, 7, 5, 3, 2});
    check_linear_products({at::kCPU, type, 1027, 72, 97});
    check_linear_products({at::kCPU, type, 131, 72, 97, 2});
    check_strange_factors(at::dtype(type));
  }
}

TEST(LinearProducts, OfF32AreOneDnns) {
  const at::Tensor x = at::randn({131, 16}), w = at::randn({16, 8}).t();
  EXPECT_TRUE(cpu::suits_multiply(x, w)) << "libtorch lacks oneDNN's linear layer, and products take longer";
  EXPECT_LT(relative_error(linear_forward(x, w, {}), at::matmul(f64(x), f64(w).t())), tolerance(at::kFloat));
  EXPECT_FALSE(cpu::suits_multiply(x.narrow(0, 0, 8), w));
  EXPECT_FALSE(cpu::suits_multiply(x.to(at::kDouble), w.to(at::kDouble)));
  EXPECT_FALSE(cpu::suits_multiply(x, w.clone().requires_grad_()));
}

TEST(LinearProducts, OfHalvesAreAsFastAsTheProcessorsInstructions) {
  using cpu::half_products, cpu::Processor;
  using enum cpu::HalfProducts;
  const Processor old, intel{.avx512_bf16 = true}, amd{.is_amd = true, .avx512_bf16 = true},
      other{.is_x86 = false}, amx{.amx_bf16 = true, .avx512_bf16 = true, .avx512_fp16 = true};
  for (const auto& [processor, bf16, f16] : {std::tuple{old, emulated, emulated},
                                             {intel, slow, emulated},
                                             {amd, fast, emulated},
                                             {amx, fast, fast},
                                             {other, fast, fast}}) {
    EXPECT_EQ(half_products(at::kBFloat16, processor), bf16);
    EXPECT_EQ(half_products(at::kHalf, processor), f16);
  }
}

// Numbers whose sums f32 holds, in three parts of the columns.
TEST(LinearProducts, OfHalvesInF32AreRoundedOnce) {
  const auto integers = [](at::IntArrayRef sizes) { return at::randint(-8, 9, sizes).to(at::kFloat); };
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {4, 131}) {
      const at::Tensor x = integers({rows, 40'000}), w = integers({40'000, 230}) * 0.25,
                       bias = integers({230});
      const at::Tensor exact = at::addmm(f64(bias), f64(x), f64(w)).to(type);
      const at::Tensor y = cpu::multiply(x.to(type), w.to(type).t(), bias.to(type));
      EXPECT_TRUE(same_bits(y, exact)) << at::toString(type) << " " << rows;
    }
  }
}

TEST(LinearProducts, OfHalvesAreWidenedFromSomeRowsOn) {
  const at::Tensor x = at::randn({64, 16}), w = at::randn({8, 16});
  const at::Tensor narrow = x.to(at::kBFloat16);
  if (!cpu::suits_multiply(narrow, w.to(at::kBFloat16)))
    GTEST_SKIP() << "this processor multiplies bf16 fast";
  EXPECT_FALSE(cpu::suits_multiply(narrow.narrow(0, 0, 7), w.to(at::kBFloat16)));
  EXPECT_FALSE(cpu::suits_multiply(narrow, w));
  EXPECT_FALSE(cpu::suits_multiply(narrow, w.to(at::kBFloat16).requires_grad_()));
}

TEST(LinearProductsDeathTest, RefuseFactorsThatDoNotFit) {
  const at::Tensor x = at::randn({131, 16}), w = at::randn({8, 16}), bias = at::randn({16});
  if (!cpu::suits_multiply(x, w)) GTEST_SKIP() << "libtorch lacks oneDNN's linear layer";
  EXPECT_DEATH(linear_forward(x, w, bias.slice(0, 0, 16, 2)), "bias is not contiguous");
  EXPECT_DEATH(linear_forward(x, at::randn({8, 15}), {}), "product of .131, 16. by .15, 8.");
  const at::Tensor dy = at::randn({131, 8}).to(at::kBFloat16), a = x.to(at::kBFloat16);
  EXPECT_DEATH(cpu::add_product(w, dy, a.narrow(0, 0, 130), true), "by .130, 16.");
  EXPECT_DEATH(cpu::add_product(at::randn({7, 16}), dy, a, true), "sum .7, 16.");
}

TEST(LinearProducts, ByBlocksDoNotDependOnTheNumberOfThreads) {
  if (!cpu::has_add_product()) GTEST_SKIP() << "oneDNN has no products of blocks for this processor";
  const at::Tensor dy = at::randn({131, 97}).to(at::kBFloat16), x = at::randn({131, 72}).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> sums;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    sums.push_back(at::zeros({97, 72}));
    cpu::add_product(sums.back(), dy, x, true);
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(sums[0], sums[1]));
}

// Of numbers that bf16 holds, whose products and sums f32 holds.
TEST(LinearProducts, OfBf16AreAddedInF32) {
  const auto integers = [](int64_t rows, int64_t columns) {
    return at::randint(-8, 9, {rows, columns}).to(at::kBFloat16);
  };
  std::vector<decltype(&cpu::add_product)> ways{[](const at::Tensor& sum, const at::Tensor& dy,
                                                   const at::Tensor& x,
                                                   bool add) { linear_weight_gradient_(sum, dy, x, add); }};
  if (cpu::has_add_product()) ways.push_back(cpu::add_product);
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

TEST(LinearProductsDeathTest, RefuseAPlaceOfAnotherSize) {
  const at::Tensor x = at::randn({24, 16}), w = at::randn({8, 16});
  EXPECT_DEATH(linear_forward(x, w, {}, at::empty({24, 9})), "y has 216 elements, not 192");
  EXPECT_DEATH(linear_input_gradient(at::randn({24, 8}), w, at::empty({24, 17})),
               "dx has 408 elements, not 384");
}

using cuda::choose_gemm;
using cuda::GemmProposal;
using cuda::GemmSize;

constexpr int multiprocessors = 132;
constexpr GemmProposal wide{66, 128, 256, 1}, high{66, 256, 128, 1}, overlapped{66, 128, 176, 1},
    unknown{66, 192, 192, 1};

TEST(ChooseGemm, PrefersTilesThatOverlapWhereKIsShort) {
  const std::vector<GemmProposal> proposals{unknown, high, wide, overlapped};
  EXPECT_EQ(choose_gemm(proposals, {32768, 50304, 2 * 768}, multiprocessors), 3U);
  EXPECT_EQ(choose_gemm(proposals, {16384, 4096, 2 * 14336}, multiprocessors), 2U);
  EXPECT_EQ(choose_gemm(proposals, {32768, 50304, 2 * 768, true}, multiprocessors), 2U) << "a bias to add";
}

// 2048 columns are cut into 12 tiles of 176 with a rest, and into 8 of 256 without.
TEST(ChooseGemm, CountsWhatTilesLeaveUnused) {
  const std::vector<GemmProposal> proposals{overlapped, wide};
  EXPECT_EQ(choose_gemm(proposals, {16384, 2048, 2 * 2048}, multiprocessors), 1U);
  EXPECT_EQ(choose_gemm(proposals, {16384, 12 * 176, 2 * 2048}, multiprocessors), 0U);
}

TEST(ChooseGemm, TakesTheFirstWhereItKnowsNoBetter) {
  const GemmSize large{16384, 8192, 4096}, small{512, 512, 4096};
  EXPECT_EQ(choose_gemm(std::vector{unknown, unknown}, large, multiprocessors), 0U);
  EXPECT_EQ(choose_gemm(std::vector{unknown, wide}, large, multiprocessors), 1U);
  EXPECT_EQ(choose_gemm(std::vector{unknown, wide}, small, multiprocessors), 0U) << "too few tiles";
  const GemmProposal split{66, 192, 192, 5}, old{13, 128, 256, 1}, wide_in_parts{66, 128, 256, 2};
  EXPECT_EQ(choose_gemm(std::vector{split, wide}, large, multiprocessors), 0U);
  EXPECT_EQ(choose_gemm(std::vector{unknown, old}, large, multiprocessors), 0U);
  EXPECT_EQ(choose_gemm(std::vector{unknown, wide_in_parts}, large, multiprocessors), 0U);
}

}  // namespace
}  // namespace teratron
