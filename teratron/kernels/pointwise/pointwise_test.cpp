// activation.h and rope.h
#include "teratron/kernels/attention/rope.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

at::Tensor formula(const at::Tensor& z, Activation kind) {
  const auto gelu = [](const at::Tensor& v) {
    return 0.5 * v * (1 + at::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v.pow(3))));
  };
  const auto halves = z.chunk(2, -1);
  switch (kind) {
    case Activation::gelu:
      return gelu(z);
    case Activation::gelu_erf:
      return 0.5 * z * (1 + at::erf(z / std::sqrt(2.0)));
    case Activation::squared_relu:
      return at::clamp_min(z, 0).pow(2);
    case Activation::relu:
      return at::relu(z);  // whose derivative at 0 is 0, clamp_min's is 1
    case Activation::silu:
      return z / (1 + at::exp(-z));
    case Activation::swiglu:
      return halves[0] / (1 + at::exp(-halves[0])) * halves[1];
    case Activation::geglu:
      return gelu(halves[0]) * halves[1];
  }
  return {};
}

constexpr Activation kinds[] = {Activation::gelu, Activation::gelu_erf, Activation::squared_relu,
                                Activation::relu, Activation::silu,     Activation::swiglu,
                                Activation::geglu};

void check_activation(Activation kind, const at::Tensor& x, const at::Tensor& bias) {
  const at::ScalarType type = x.scalar_type();
  SCOPED_TRACE(fmt::format("kind {} of {} biased {}", static_cast<int>(kind), x.size(-1), bias.defined()));
  const at::Tensor z = leaf(x);
  const at::Tensor y = formula(bias.defined() ? z + f64(bias) : z, kind);
  const at::Tensor actual = activation_forward(x, bias, kind);
  EXPECT_EQ(actual.scalar_type(), type);
  EXPECT_CLOSE(actual, y, type);
  const at::Tensor dy = randn(y.sizes(), type);
  y.backward(f64(dy));
  EXPECT_CLOSE(activation_backward(dy, x, bias, kind), z.grad(), type);
  const SummedGradient summed = activation_backward_summed(dy, x, bias, kind);
  EXPECT_TRUE(same_bits(summed.dx, activation_backward(dy, x, bias, kind)));
  const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_EQ(summed.column_sum.scalar_type(), sums);
  EXPECT_CLOSE(summed.column_sum, z.grad().flatten(0, -2).sum(0), sums);
}

TEST(Activation, MatchesAutogradOfTheFormula) {
  for (const Activation kind : kinds) {
    for (const auto type : float_types) {
      check_activation(kind, randn({5, 3, 14}, type) * 2, {});
      check_activation(kind, randn({5, 3, 14}, type) * 2, randn({14}, type));
      check_activation(kind, randn({131, 1102}, type) * 2, randn({1102}, type));
    }
  }
}

TEST(Activation, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = randn({300, 128}), dy = randn({300, 64});
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const SummedGradient all = activation_backward_summed(dy, x, {}, Activation::swiglu);
  at::set_num_threads(1);
  const SummedGradient one = activation_backward_summed(dy, x, {}, Activation::swiglu);
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(all.dx, one.dx) && same_bits(all.column_sum, one.column_sum));
}

TEST(Activation, WritesWhereItIsTold) {
  const at::Tensor x = randn({70, 24}), dy = randn({70, 12}), z = at::empty({0, 24});
  const at::Tensor y = at::empty({70, 12}), sum = at::empty({24}), dx = x.clone();
  EXPECT_TRUE(activation_forward(x, {}, Activation::geglu, y).is_same(y));
  EXPECT_TRUE(same_bits(y, activation_forward(x, {}, Activation::geglu)));
  const SummedGradient expected = activation_backward_summed(dy, x, {}, Activation::geglu);
  const SummedGradient in_place = activation_backward_summed(dy, dx, {}, Activation::geglu, {dx, sum});
  EXPECT_TRUE(in_place.dx.is_same(dx) && in_place.column_sum.is_same(sum));
  EXPECT_TRUE(same_bits(dx, expected.dx) && same_bits(sum, expected.column_sum));
  EXPECT_EQ(activation_forward(z, {}, Activation::geglu).sizes(), (at::IntArrayRef{0, 12}));
  const SummedGradient nothing =
      activation_backward_summed(at::empty({0, 12}), z, {}, Activation::geglu, {at::Tensor(), sum});
  EXPECT_EQ(nothing.column_sum.abs().sum().item<float>(), 0);
}

TEST(Activation, PassesNaNOn) {
  for (const Activation kind : kinds) {
    const at::Tensor x = at::full({2, 2}, NAN);
    EXPECT_TRUE(activation_forward(x, {}, kind).isnan().all().item<bool>()) << static_cast<int>(kind);
  }
}

TEST(Activation, StaysFiniteFarOut) {
  const at::Tensor x = at::tensor({-1e4f, -100.f, 100.f, 1e4f});
  for (const Activation kind : {Activation::gelu, Activation::gelu_erf, Activation::silu}) {
    const at::Tensor y = activation_forward(x, {}, kind);
    EXPECT_TRUE(at::allclose(y, at::relu(x))) << static_cast<int>(kind);
    const at::Tensor dx = activation_backward(at::ones({4}), x, {}, kind);
    EXPECT_TRUE(at::allclose(dx, at::tensor({0.f, 0.f, 1.f, 1.f}))) << static_cast<int>(kind);
  }
}

TEST(ColumnSum, AddsRowsInF32) {
  for (const auto type : float_types) {
    const at::Tensor x = randn({13, 37, 11}, type);
    const at::Tensor sum = column_sum(x);
    EXPECT_EQ(sum.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_CLOSE(sum, f64(x).sum(at::IntArrayRef{0, 1}), type == at::kDouble ? at::kDouble : at::kFloat);
  }
}

/// Rotation by complex multiplication, channel by channel.
at::Tensor rotate_reference(const at::Tensor& x, const RopeTable& t, const at::Tensor& positions,
                            RopeStyle style) {
  const int64_t half = t.cos.size(1);
  const at::Tensor cos = f64(t.cos).index({positions}), sin = f64(t.sin).index({positions});  // [S, B, half]
  at::Tensor out = f64(x).clone();
  const at::Tensor in = f64(x);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = style == RopeStyle::half ? i : 2 * i,
                  b = style == RopeStyle::half ? i + half : 2 * i + 1;
    at::Tensor c = cos.select(-1, i), s = sin.select(-1, i);
    while (c.dim() < x.dim() - 1) c = c.unsqueeze(-1), s = s.unsqueeze(-1);
    out.select(-1, a).copy_(in.select(-1, a) * c - in.select(-1, b) * s);
    out.select(-1, b).copy_(in.select(-1, b) * c + in.select(-1, a) * s);
  }
  return out;
}

RopeTable table(int64_t positions, int64_t half, at::ScalarType type) {
  const at::Tensor angle =
      at::outer(at::arange(positions, at::kDouble),
                at::pow(10000.0, -at::arange(half, at::kDouble) / static_cast<double>(half)));
  const auto to = type == at::kDouble ? at::kDouble : at::kFloat;
  return {angle.cos().to(to), angle.sin().to(to)};
}

TEST(Rope, RotatesViewsOfTheFusedBuffer) {
  for (const auto type : float_types) {
    for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
      // [S, B, groups, queries + key + value, D]; 10 of 14 channels are rotated.
      at::Tensor qkv = randn({6, 2, 2, 5, 14}, type);
      const at::Tensor before = qkv.clone();
      const RopeTable t = table(20, 5, type);
      const at::Tensor positions = at::randint(20, {6, 2}, at::kLong);
      const at::Tensor view = qkv.narrow(3, 0, 4);
      const at::Tensor copied = rope(view, t, positions, {.style = style});
      rope_(view, t, positions, {.style = style});
      EXPECT_CLOSE(view, rotate_reference(before.narrow(3, 0, 4), t, positions, style), type);
      EXPECT_TRUE(same_bits(copied, view));
      EXPECT_TRUE(at::equal(qkv.select(3, 4), before.select(3, 4))) << "the values must stay";
      rope_(view, t, positions, {.style = style, .direction = RopeDirection::inverse});
      EXPECT_LT(relative_error(qkv, before), 2 * tolerance(type));
    }
  }
}

TEST(Rope, TakesExpandedPositions) {
  const at::Tensor x = randn({4, 3, 2, 8}, at::kDouble);
  const RopeTable t = table(9, 4, at::kDouble);
  const at::Tensor shared = at::tensor({8, 0, 3, 5}, at::kLong).unsqueeze(1).expand({4, 3});
  const at::Tensor y = rope(x, t, shared, {});
  EXPECT_CLOSE(y, rotate_reference(x, t, shared.contiguous(), RopeStyle::half), at::kDouble);
  EXPECT_TRUE(at::equal(y.select(0, 1), x.select(0, 1))) << "position 0 is not rotated";
}

}  // namespace
}  // namespace teratron
