// FP8 on the GPU against the CPU: casts bit by bit, products within the rounding of their result.
#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/kernels/fp8/fp8.h"
#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

Fp8Scale on_gpu(const Fp8Scale& scale) {
  return {scale.scale.cuda(), scale.scale_inv.cuda()};
}

Fp8Scale scale_by(float scale) {
  return {at::full({1}, scale), at::full({1}, 1.0F / scale)};
}

/// Leaves other bytes in the memory that the next results will be allocated in.
void poison_bytes(int64_t bytes) {
  std::vector<at::Tensor> blocks;
  for (int i = 0; i < 4; ++i)
    blocks.push_back(at::full({bytes}, 0x5A, at::device(at::kCUDA).dtype(at::kByte)));
}

at::Tensor codes(const at::Tensor& fp8) {
  return fp8.cpu().view(at::kByte);
}

at::Tensor spread(int64_t rows, int64_t columns, at::ScalarType type) {
  // Magnitudes over the whole range of the format and beyond it.
  return (at::randn({rows, columns}) * at::exp2(at::randint(-20, 10, {rows, columns}))).to(type);
}

TEST_F(Gpu, Fp8CastMatchesCpu) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{16, 16}, {144, 80}, {128, 64}, {400, 48}, {1024, 4096}, {2064, 1040}}) {
      for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
        SCOPED_TRACE(fmt::format("{} [{}, {}]", at::toString(type), rows, columns));
        const at::Tensor x = spread(rows, columns, type);
        const Fp8Scale scale = compute_fp8_scale(x, format),
                       device_scale = compute_fp8_scale(x.cuda(), format);
        EXPECT_TRUE(at::equal(device_scale.scale.cpu(), scale.scale));
        EXPECT_TRUE(at::equal(device_scale.scale_inv.cpu(), scale.scale_inv));
        const Fp8Scale used{scale.scale * 3, scale.scale_inv / 3};  // some values saturate
        const at::Tensor amax = at::zeros({1}), device_amax = at::zeros({1}, at::device(at::kCUDA));
        const Fp8Matrix expected = cast_to_fp8(x, {.format = format, .scale = used, .amax = amax});
        poison_bytes(x.numel());
        const Fp8Matrix both =
            cast_to_fp8(x.cuda(), {.format = format, .scale = on_gpu(used), .amax = device_amax});
        EXPECT_TRUE(at::equal(codes(both.rows), codes(expected.rows)));
        EXPECT_TRUE(at::equal(codes(both.columns), codes(expected.columns)));
        EXPECT_TRUE(at::equal(device_amax.cpu(), amax));
        poison_bytes(x.numel());
        const Fp8Cast part{.format = format, .scale = on_gpu(used)};
        Fp8Cast only_rows = part, only_columns = part;
        only_rows.columns = only_columns.rows = false;
        EXPECT_TRUE(at::equal(codes(cast_to_fp8(x.cuda(), only_rows).rows), codes(expected.rows)));
        EXPECT_TRUE(at::equal(codes(cast_to_fp8(x.cuda(), only_columns).columns), codes(expected.columns)));
      }
    }
  }
}

TEST_F(Gpu, Fp8AmaxPropagatesNaN) {
  at::Tensor x = at::randn({256, 256}, at::device(at::kCUDA).dtype(at::kBFloat16));
  x[200][77] = std::nan("");
  const at::Tensor amax = at::full({1}, 3.0F, at::device(at::kCUDA));
  const Fp8Scale one{at::ones_like(amax), at::ones_like(amax)};
  const Fp8Matrix matrix = cast_to_fp8(x, {.scale = one, .amax = amax});
  EXPECT_TRUE(at::isnan(amax).item<bool>());
  EXPECT_TRUE(at::isnan(matrix.columns.to(at::kFloat)[77][200]).item<bool>());
  EXPECT_EQ(compute_fp8_scale(x, Fp8Format::e4m3).scale.item<float>(), 1);
}

struct Operands {
  Fp8Product cpu, gpu;
};

Operands operands(int64_t m, int64_t n, int64_t k, Fp8Format a_format) {
  const auto operand = [](const at::Tensor& x, Fp8Format format) {
    const Fp8Matrix q = cast_to_fp8(x, {.format = format, .scale = compute_fp8_scale(x, format)});
    return Fp8Operand{q.rows, q.scale_inv};
  };
  const Fp8Product cpu{.a = operand(at::randn({m, k}), a_format),
                       .b = operand(at::randn({n, k}), Fp8Format::e4m3)};
  return {cpu,
          {.a = {cpu.a.values.cuda(), cpu.a.scale_inv.cuda()},
           .b = {cpu.b.values.cuda(), cpu.b.scale_inv.cuda()}}};
}

struct ActivationCase {
  Activation kind;
  at::ScalarType type;
  int64_t rows, width;
  Fp8Format format;
};

void expect_same(const Fp8Matrix& actual, const Fp8Matrix& expected) {
  EXPECT_TRUE(at::equal(codes(actual.rows), codes(expected.rows)));
  EXPECT_TRUE(at::equal(codes(actual.columns), codes(expected.columns)));
}

// Bitwise equal to the unfused passes, except for dbias.
void check_activation(const ActivationCase& c) {
  SCOPED_TRACE(
      fmt::format("kind {} {} [{}, {}]", static_cast<int>(c.kind), at::toString(c.type), c.rows, c.width));
  const auto device = at::device(at::kCUDA);
  const at::Tensor x = randn({c.rows, c.width * (is_gated(c.kind) ? 2 : 1)}, c.type).cuda(),
                   dy = randn({c.rows, c.width}, c.type).cuda();
  const auto cast_with = [&](const at::Tensor& amax) {
    return Fp8Cast{.format = c.format, .scale = on_gpu(scale_by(150)), .amax = amax};
  };
  const at::Tensor amax = at::zeros({1}, device), expected_amax = at::zeros({1}, device);
  const Fp8Matrix y = cast_to_fp8(activation_forward(x, {}, c.kind), cast_with(expected_amax));
  poison_bytes(x.numel());
  expect_same(activation_forward_fp8(x, c.kind, cast_with(amax)), y);
  EXPECT_TRUE(at::equal(amax, expected_amax));

  amax.zero_(), expected_amax.zero_();
  const ActivationGradients plain = activation_backward(dy, x, {}, c.kind, {.dbias = GradSink{}});
  const Fp8Matrix dx = cast_to_fp8(plain.dx, cast_with(expected_amax));
  poison_bytes(x.numel());
  expect_same(activation_backward_fp8(dy, x, c.kind, cast_with(amax), std::nullopt).dx, dx);
  const auto summed = [&] { return activation_backward_fp8(dy, x, c.kind, cast_with(amax), GradSink{}); };
  const Fp8ActivationGradients one = summed(), another = summed();
  expect_same(one.dx, dx);
  EXPECT_TRUE(at::equal(amax, expected_amax));
  EXPECT_TRUE(same_bits(one.dbias, another.dbias));
  EXPECT_LT(relative_error(one.dbias, plain.dbias), 2e-6);
}

TEST_F(Gpu, Fp8ActivationMatchesUnfused) {
  for (const Activation kind : activations) {
    check_activation({kind, at::kBFloat16, 16, 16, Fp8Format::e4m3});
    check_activation({kind, at::kBFloat16, 144, 80, Fp8Format::e5m2});
    check_activation({kind, at::kHalf, 400, 192, Fp8Format::e5m2});
    check_activation({kind, at::kBFloat16, 2064, 1040, Fp8Format::e4m3});
    check_activation({kind, at::kFloat, 32, 48, Fp8Format::e5m2});
  }
}

TEST_F(Gpu, Fp8ActivationCastsRequestedParts) {
  const at::Tensor x = randn({256, 128}, at::kBFloat16).cuda();
  Fp8Cast cast{.scale = on_gpu(scale_by(3))};
  const Fp8Matrix both = activation_forward_fp8(x, Activation::swiglu, cast);
  cast.columns = false;
  const Fp8Matrix rows = activation_forward_fp8(x, Activation::swiglu, cast);
  EXPECT_FALSE(rows.columns.defined());
  EXPECT_TRUE(at::equal(codes(rows.rows), codes(both.rows)));
}

// Bitwise equal to the unfused passes: with padding, targets of other ranks, and masked rows of NaN.
TEST_F(Gpu, Fp8CrossEntropyMatchesUnfused) {
  for (const auto& [rows, width, padding] :
       {std::array<int64_t, 3>{16, 16, 0}, {144, 80, 9}, {400, 1040, 40}, {2064, 4112, 0}, {32, 64, 64}}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
      for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
        SCOPED_TRACE(fmt::format("{} [{}, {}] {}", at::toString(type), rows, width, padding));
        const VocabRange range{.first = 1000, .columns = width - padding};
        const at::Tensor logits = (3 * randn({rows, width})).to(type).cuda();
        const at::Tensor targets = at::randint(990, 1010 + width, {rows}, at::kLong).cuda();
        const CrossEntropyStatistics s = cross_entropy_statistics(logits, targets, range);
        const at::Tensor scale = at::rand({rows}, at::kFloat).cuda();
        scale[rows / 2] = 0;
        logits[rows / 2].fill_(std::numeric_limits<double>::quiet_NaN());
        const CrossEntropySaved saved{s.max, s.sum_exp.clamp_min(1e-3), targets, scale};
        const at::Tensor amax = at::zeros({1}).cuda(), expected_amax = at::zeros({1}).cuda();
        const auto cast_with = [&](const at::Tensor& most) {
          return Fp8Cast{.format = format, .scale = on_gpu(scale_by(300)), .amax = most};
        };
        const at::Tensor plain = logits.clone();
        cross_entropy_gradient_(plain, saved, range);
        const Fp8Matrix expected = cast_to_fp8(plain, cast_with(expected_amax));
        poison_bytes(logits.numel());
        expect_same(cross_entropy_gradient_fp8(logits, saved, range, cast_with(amax)), expected);
        EXPECT_TRUE(at::equal(amax, expected_amax));
        logits[0][0] = std::numeric_limits<double>::quiet_NaN();  // a logical column, unless all are padding
        cross_entropy_gradient_fp8(logits, saved, range, cast_with(amax));
        EXPECT_EQ(amax.isnan().item<bool>(), range.columns > 0);
      }
    }
  }
}

// Tensor cores accumulate FP8 products with fewer bits than fp32; with fast accumulation over longer sums.
TEST_F(Gpu, Fp8MatmulMatchesCpu) {
  for (const Fp8Format a_format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{16, 16, 16}, {256, 512, 1024}, {1040, 208, 4096}}) {
      SCOPED_TRACE(fmt::format("{} by {} over {}", m, n, k));
      Operands f = operands(m, n, k, a_format);
      const at::Tensor bias = at::randn({n}, at::kBFloat16);
      const at::Tensor expected = fp8_matmul(f.cpu, {}, at::kFloat);
      EXPECT_LT(relative_error(fp8_matmul(f.gpu, {}, at::kFloat), expected), 5e-4);
      EXPECT_LT(relative_error(fp8_matmul(f.gpu, {}, at::kBFloat16), expected), 4e-3);
      EXPECT_LT(relative_error(fp8_matmul(f.gpu, bias.cuda(), at::kBFloat16), expected + bias), 4e-3);
      const at::Tensor residual = at::randn({m, n}, at::kBFloat16);
      EXPECT_LT(
          relative_error(fp8_matmul_add(f.gpu, bias.cuda(), residual.cuda()), expected + bias + residual),
          4e-3);
      EXPECT_LT(relative_error(fp8_matmul_add(f.gpu, {}, residual.cuda()), expected + residual), 4e-3);
      const at::Tensor out = at::full({m, n}, std::nanf(""), at::device(at::kCUDA));
      fp8_matmul_out(out, f.gpu);
      EXPECT_LT(relative_error(out, expected), 5e-4);
      const at::Tensor sum = at::randn({m, n});
      const at::Tensor device_sum = sum.cuda();
      fp8_matmul_add_(device_sum, f.gpu);
      EXPECT_LT(relative_error(device_sum, sum + expected), 5e-4);
      f.gpu.fast_accumulation = true;
      EXPECT_LT(relative_error(fp8_matmul(f.gpu, {}, at::kBFloat16), expected), 1e-2);
    }
  }
}

}  // namespace
}  // namespace teratron
