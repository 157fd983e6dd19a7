// gemm.h on the GPU: cuBLASLt's GEMMs, and those with a fused activation or RoPE
#include <ATen/cuda/CUDAContextLight.h>

#include "teratron/kernels/gemm/launchers.h"
#include "teratron/testing/kernels.h"
#include "teratron/testing/linear/linear_activation.h"
#include "teratron/testing/linear/linear_products.h"

namespace teratron {
namespace {

TEST_F(Gpu, LinearAdd) {
  for (const auto type : float_types) {
    for (const auto& [rows, in, out] : {std::array<int64_t, 3>{8, 16, 24}, {1000, 520, 264}, {33, 7, 5}}) {
      SCOPED_TRACE(fmt::format("{} [{}, {}] to {}", at::toString(type), rows, in, out));
      const at::Tensor x = randn({rows, in}, type), w = randn({out, in}, type),
                       residual = randn({rows, out}, type);
      for (const at::Tensor& bias : {at::Tensor(), randn({out}, type)}) {
        const at::Tensor y = linear_add(gpu(x), gpu(w), gpu(bias), gpu(residual));
        EXPECT_LT(relative_error(y, linear_add(f64(x), f64(w), f64(bias), f64(residual))),
                  gpu_tolerance(type));
      }
    }
  }
}

// Few rows: a kernel of ours. Widths beside multiples of its tile, k beside multiples of its chunk; fewer
// tiles than SMs with a long k, and many tiles for each block.
constexpr std::array<std::array<int64_t, 3>, 14> few_rows{{{1, 8, 16},
                                                           {9, 4096, 520},
                                                           {6, 1096, 76},
                                                           {3, 64, 2050},
                                                           {1, 768, 2304},
                                                           {8, 4096, 1032},
                                                           {7, 200, 50},
                                                           {4, 1032, 24},
                                                           {5, 14336, 48},
                                                           {8, 72, 6},
                                                           {2, 3072, 768},
                                                           {1, 4096, 6144},
                                                           {1, 3000, 2112},
                                                           {3, 328, 30000}}};

TEST_F(Gpu, LinearOfFewRows) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, in, out] : few_rows) {
      SCOPED_TRACE(fmt::format("{} [{}, {}] to {}", at::toString(type), rows, in, out));
      const at::Tensor x = randn({rows, in}, type), w = (randn({out, in}) / std::sqrt(in)).to(type),
                       residual = randn({rows, out}, type);
      for (const at::Tensor& bias : {at::Tensor(), randn({out}, type)}) {
        EXPECT_LT(relative_error(linear_forward(gpu(x), gpu(w), gpu(bias)),
                                 linear_forward(f64(x), f64(w), f64(bias))),
                  gpu_tolerance(type));
        EXPECT_LT(relative_error(linear_add(gpu(x), gpu(w), gpu(bias), gpu(residual)),
                                 linear_add(f64(x), f64(w), f64(bias), f64(residual))),
                  gpu_tolerance(type));
        for (const Activation activation : activations) {
          const int64_t width = out / parts_of(activation);
          const at::Tensor y = gpu(at::empty({rows, width}, type)), expected = f64(at::empty({rows, width}));
          linear_activation({y, {}}, {gpu(x), gpu(w), gpu(bias)}, activation);
          linear_activation({expected, {}}, {f64(x), f64(w), f64(bias)}, activation);
          EXPECT_LT(relative_error(y, expected), 2 * gpu_tolerance(type));
        }
      }
    }
  }
}

void check_normed(const std::array<int64_t, 3>& shape, at::ScalarType type, const NormOptions& options,
                  const at::Tensor& bias) {
  const auto& [rows, in, out] = shape;
  // Beside zero, which a norm without centering of the squares would show.
  const at::Tensor x = (randn({rows, in}) * 2 + 3).to(type), w = (randn({out, in}) / std::sqrt(in)).to(type);
  const at::Tensor gain = randn({in}, type),
                   shift = options.kind == NormKind::layer ? randn({in}, type) : at::Tensor();
  const NormedRows normed{gpu(x), {gpu(gain), gpu(shift)}, options};
  ASSERT_EQ(normalizes_rows(normed, gpu(w)), rows <= 8);
  if (rows > 8) return;
  // The GEMM multiplies the norm's rounded output.
  const at::Tensor y = norm_forward(f64(x), {}, {f64(gain), f64(shift)}, options).y.to(type);
  const at::Tensor expected = linear_forward(f64(y), f64(w), f64(bias));
  EXPECT_LT(relative_error(linear_normed(normed, gpu(w), gpu(bias)), expected), gpu_tolerance(type));
  for (const Activation activation : activations) {
    const at::Tensor activated = f64(at::empty({rows, out / parts_of(activation)}));
    linear_activation({activated, {}}, {f64(y), f64(w), f64(bias)}, activation);
    EXPECT_LT(relative_error(linear_normed_activation(normed, gpu(w), gpu(bias), activation), activated),
              2 * gpu_tolerance(type));
  }
}

TEST_F(Gpu, LinearOfFewNormedRows) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const std::array<int64_t, 3>& shape : few_rows) {
      if (shape[1] > 4096) continue;  // beyond the shared memory of a block
      for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
        const bool zero_centered = shape[0] % 2 == 0;
        SCOPED_TRACE(fmt::format("{} [{}, {}] to {}, rms {}, zero-centered {}", at::toString(type), shape[0],
                                 shape[1], shape[2], kind == NormKind::rms, zero_centered));
        check_normed(shape, type, {.kind = kind, .eps = 1e-5, .zero_centered = zero_centered},
                     shape[1] % 3 == 0 ? at::Tensor() : randn({shape[2]}, type));
      }
    }
  }
}

// A text does not depend on how many others are generated, within limits.
TEST_F(Gpu, RowsDoNotDependOnTheirNumber) {
  const at::Tensor x = gpu(randn({8, 1024}, at::kBFloat16)), w = gpu(randn({528, 1024}, at::kBFloat16));
  const auto normed = [&](int64_t rows) {
    return linear_normed({x.narrow(0, 0, rows), {gpu(at::ones({1024}, at::kBFloat16)), {}}, {}}, w, {});
  };
  for (const auto& [fewer, more] : {std::pair<int64_t, int64_t>{1, 8}, {3, 8}, {5, 6}}) {
    EXPECT_TRUE(same_bits(linear_forward(x.narrow(0, 0, fewer), w, {}),
                          linear_forward(x.narrow(0, 0, more), w, {}).narrow(0, 0, fewer)));
    EXPECT_TRUE(same_bits(normed(fewer), normed(more).narrow(0, 0, fewer)));
  }
}

// Odd sizes, rows with gaps, and sizes large enough for every tile shape.
TEST_F(Gpu, LinearGemm) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_linear_products({at::kCUDA, type, 7, 5, 3, 2});
    check_linear_products({at::kCUDA, type, 40, 24, 16, 8});
    check_linear_products({at::kCUDA, type, 40, 24, 16});
    check_linear_products({at::kCUDA, type, 33, 1027, 129});
    check_strange_factors(at::device(at::kCUDA).dtype(type));
  }
  constexpr std::array<std::array<int64_t, 3>, 4> shapes{
      {{4096, 768, 2304}, {8192, 2048, 2048}, {2048, 1024, 12672}, {4104, 4096, 2056}}};
  for (const auto& [tokens, inputs, outputs] : shapes) {
    check_linear_products({at::kCUDA, at::kBFloat16, tokens, inputs, outputs});
  }
}

// cuBLASLt would read out of bounds.
TEST_F(Gpu, LinearGemmRejectsMismatchedOperands) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto random = [](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, at::device(at::kCUDA).dtype(at::kBFloat16));
  };
  EXPECT_DEATH(linear_forward(random(24, 16), random(8, 17), {}), "product of");
  EXPECT_DEATH(linear_forward(random(24, 16), random(8, 16), random(1, 9)), "bias has 9 elements, not 8");
}

bool is_hopper() {
  return at::cuda::getCurrentDeviceProperties()->major == 9;
}

// cuBLASLt's first candidates for the large sizes, 192 x 192 and 128 x 320, are not the fastest on Hopper.
TEST_F(Gpu, LargeGemmsUseTheHeuristic) {
  const auto place = [](int64_t m, int64_t n, int64_t k) {
    const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
    const at::Tensor a = at::empty({m, k}, options), b = at::empty({n, k}, options),
                     out = at::empty({m, n}, options);
    return cuda::gemm_algorithm_index({.m = m,
                                       .n = n,
                                       .k = k,
                                       .a = {.data = a.data_ptr(), .type = Dtype::bf16, .stride = k},
                                       .b = {.data = b.data_ptr(), .type = Dtype::bf16, .stride = k},
                                       .addend = nullptr,
                                       .bias = nullptr,
                                       .out = out.data_ptr(),
                                       .out_type = Dtype::bf16,
                                       .workspace = nullptr});
  };
  EXPECT_EQ(place(16384, 8192, 2048) > 0, is_hopper());
  EXPECT_EQ(place(16384, 4096, 4096) > 0, is_hopper());
  EXPECT_EQ(place(64, 64, 64), 0U);
}

// Partial tiles at every edge, an odd number of tile rows, pipelines that wrap around or are not filled, a
// single tile column; values of k for both tile shapes.
TEST_F(Gpu, LinearActivationFused) {
  constexpr std::array<std::array<int64_t, 3>, 6> shapes{{{2200, 2056, 72},
                                                          {17000, 264, 200},
                                                          {4352, 1544, 8},
                                                          {3000, 2048, 512},
                                                          {34000, 248, 64},
                                                          {2200, 2056, 1032}}};
  for (const auto& [rows, width, k] : shapes) {
    for (const Activation activation : activations) {
      EXPECT_EQ(cuda::has_gemm_activation({.rows = rows, .width = width, .k = k, .activation = activation}),
                is_hopper());
      check_every_element({at::kCUDA, at::kBFloat16, activation, rows, width, k});
      // Less than a step of the main loop, a whole one, and more than one.
      for (const int64_t added_k : {8, 48, 64, 136})
        check_every_element({at::kCUDA, at::kBFloat16, activation, rows, width, k, added_k});
    }
  }
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::gelu, 2200, 2056, 72});
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::gelu, 2200, 2056, 1032});
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::swiglu, 17000, 264, 200});
}

// Other dtypes, fewer tiles than SMs, widths that are not multiples of 8.
TEST_F(Gpu, LinearActivationUnfused) {
  EXPECT_FALSE(cuda::has_gemm_activation({.rows = 40, .width = 16, .k = 24, .activation = Activation::gelu}));
  for (const auto type : float_types) {
    for (const Activation activation : activations) {
      check_linear_activation({at::kCUDA, type, activation, 40, 16, 24});
    }
  }
  check_linear_activation({at::kCUDA, at::kHalf, Activation::gelu, 2200, 2056, 72});
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::gelu, 2200, 2055, 71});
}

// An operand that is not 16-byte aligned runs unfused.
TEST_F(Gpu, LinearActivationOfUnalignedOperands) {
  const auto random = [](at::IntArrayRef sizes) { return gpu(randn(sizes, at::kBFloat16)); };
  const auto shift = [](const at::Tensor& x) {
    return at::cat({x.new_empty({4}), x.flatten()}).slice(0, 4).view(x.sizes());
  };
  const at::Tensor x = random({4352, 64}), w = random({2048, 64}) / 8, w2 = w.t().contiguous();
  const ActivationOutputs there = linear_activation({x, w}, Activation::gelu, true);
  EXPECT_LT(relative_error(linear_activation({shift(x), w}, Activation::gelu, false).y, there.y),
            gpu_tolerance(at::kBFloat16));
  const auto backward = [&](const at::Tensor& dy, const at::Tensor& z) {
    return linear_activation_backward({dy, w2}, z, Activation::gelu, std::nullopt).dx;
  };
  const at::Tensor dz = backward(x, there.z);
  EXPECT_LT(relative_error(backward(shift(x), there.z), dz), gpu_tolerance(at::kBFloat16));
  EXPECT_LT(relative_error(backward(x, shift(there.z)), dz), gpu_tolerance(at::kBFloat16));
}

struct RopeCase {
  int64_t length, batch, groups, per_group, channels, k;
  RopeStyle style = RopeStyle::half;
  int64_t rotated = channels;
  bool fused = true;  // on Hopper
  int64_t added_k = 0;

  int64_t rows() const { return length * batch; }
  int64_t width() const { return groups * per_group * channels; }
};

QkvRope on_gpu(const QkvRope& rope) {
  const auto& [table, style, positions] = rope.rotation;
  const auto f32 = [](const at::Tensor& x) { return x.to(at::kCUDA, at::kFloat); };
  return {{{f32(table.cos), f32(table.sin)}, style, positions.to(at::kCUDA)}, rope.per_group, rope.channels};
}

void check_rope(const RopeCase& c, const at::Tensor& positions, bool has_bias) {
  SCOPED_TRACE(fmt::format("{} x {} tokens, {} groups of {} heads of {}, bias {}", c.length, c.batch,
                           c.groups, c.per_group, c.channels, has_bias));
  const at::Tensor x = randn({c.rows(), c.k}, at::kBFloat16), w = randn({c.width(), c.k}, at::kBFloat16),
                   bias = has_bias ? randn({c.width()}, at::kBFloat16) : at::Tensor();
  const at::Tensor angle = at::randn({c.length + 3, c.rotated / 2}).to(at::kDouble);
  const QkvRope rope{{{angle.cos(), angle.sin()}, c.style, positions}, c.per_group, c.channels};
  const auto gpu = [](const at::Tensor& t) { return t.defined() ? t.to(at::kCUDA) : t; };
  if (at::cuda::getCurrentDeviceProperties()->major == 9) {
    const cuda::FusedGemmShape shape{c.rows(), c.width(), c.k, Activation::relu};
    EXPECT_EQ(
        c.fused && c.rotated == c.channels && c.style == RopeStyle::half,
        cuda::has_gemm_rope(shape, c.channels) && c.rotated == c.channels && c.style == RopeStyle::half);
  }
  const AddedProduct added = c.added_k ? AddedProduct{randn({c.rows(), c.added_k}, at::kBFloat16),
                                                      randn({c.width(), c.added_k}, at::kBFloat16)}
                                       : AddedProduct{};
  const AddedProduct added_there{gpu(added.x), gpu(added.w)};
  const at::Tensor y = linear_rope({gpu(x), gpu(w), gpu(bias), added_there}, on_gpu(rope));
  const at::Tensor expected = linear_rope({f64(x), f64(w), f64(bias), {f64(added.x), f64(added.w)}}, rope);
  EXPECT_LT(relative_error(y, expected), 2 * tolerance(at::kBFloat16));
  // The maximum error, so that no head or row uses another's angles.
  EXPECT_LT((f64(y).cpu() - expected).abs().max().item<double>(), 0.02 * expected.abs().max().item<double>());
}

at::Tensor random_positions(const RopeCase& c) {
  return at::randint(c.length + 3, {c.length, c.batch}, at::kLong);
}

TEST_F(Gpu, LinearRopeFused) {
  for (const bool bias : {false, true}) {
    for (const RopeCase& c : {RopeCase{1024, 2, 8, 3, 128, 1024}, RopeCase{700, 3, 16, 3, 64, 1032},
                              RopeCase{2001, 3, 5, 3, 64, 1024}, RopeCase{1500, 4, 1, 10, 128, 2048},
                              RopeCase{1111, 3, 14, 3, 32, 1024}, RopeCase{1024, 3, 4, 3, 256, 1024}}) {
      check_rope(c, random_positions(c), bias);
    }
  }
  const RopeCase c{1024, 2, 8, 3, 128, 1024};
  check_rope(c, at::arange(c.length, at::kLong).unsqueeze(1).expand({c.length, c.batch}), true);
  for (const int64_t added_k : {48, 72}) {
    RopeCase with_product{700, 3, 16, 3, 64, 1032};
    with_product.added_k = added_k;
    check_rope(with_product, random_positions(with_product), true);
  }
}

// Products of adapters: y += x w^T, and its transpose in backward; ranks that no fused kernel takes, too.
TEST_F(Gpu, AddedProduct) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rank : {3, 8, 16, 48}) {
      const at::Tensor x = randn({2048, rank}, type), w = randn({1040, rank}, type),
                       y = randn({2048, 1040}, type);
      const at::Tensor expected = f64(y) + at::matmul(f64(x), f64(w).t());
      const at::Tensor sum = gpu(y), again = gpu(y);
      add_product_(sum, {gpu(x), gpu(w)});
      add_product_(again, {gpu(x), gpu(w.t().contiguous()).t()});
      EXPECT_LT(relative_error(sum, expected), gpu_tolerance(type));
      EXPECT_LT(relative_error(again, expected), gpu_tolerance(type));
    }
  }
  check_every_element({at::kCUDA, at::kBFloat16, Activation::swiglu, 2200, 2056, 72, 12});
}

// Other RoPE styles, small k, few tiles, and heads that span tiles.
TEST_F(Gpu, LinearRopeUnfused) {
  for (const RopeCase& c : {RopeCase{1024, 2, 8, 3, 128, 1024, RopeStyle::interleaved},
                            RopeCase{1024, 2, 8, 3, 128, 1024, RopeStyle::half, 64},
                            RopeCase{1024, 2, 8, 3, 128, 512, RopeStyle::half, 128, false},
                            RopeCase{100, 2, 8, 3, 128, 1024, RopeStyle::half, 128, false},
                            RopeCase{2048, 2, 8, 3, 96, 1024, RopeStyle::half, 96, false}}) {
    check_rope(c, random_positions(c), true);
  }
}

}  // namespace
}  // namespace teratron
