// activation.h and embedding.h
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/embedding.h"
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
      return at::relu(z);  // its derivative at 0 is 0, clamp_min's is 1
    case Activation::silu:
      return z / (1 + at::exp(-z));
    case Activation::quick_gelu:
      return z / (1 + at::exp(-1.702 * z));
    case Activation::swiglu:
      return halves[0] / (1 + at::exp(-halves[0])) * halves[1];
    case Activation::geglu:
      return gelu(halves[0]) * halves[1];
  }
  return {};
}

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
  EXPECT_CLOSE(activation_backward(dy, x, bias, kind).dx, z.grad(), type);
  const ActivationGradients summed = activation_backward(dy, x, bias, kind, {.dbias = GradSink{}});
  EXPECT_TRUE(same_bits(summed.dx, activation_backward(dy, x, bias, kind).dx));
  const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_EQ(summed.dbias.scalar_type(), sums);
  EXPECT_CLOSE(summed.dbias, z.grad().flatten(0, -2).sum(0), sums);
}

TEST(Activation, MatchesAutograd) {
  for (const Activation kind : activations) {
    for (const auto type : float_types) {
      check_activation(kind, randn({5, 3, 14}, type) * 2, {});
      check_activation(kind, randn({5, 3, 14}, type) * 2, randn({14}, type));
      check_activation(kind, randn({131, 1102}, type) * 2, randn({1102}, type));
    }
  }
}

TEST(Activation, IsIndependentOfThreadCount) {
  const at::Tensor x = randn({300, 128}), dy = randn({300, 64});
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const ActivationGradients all = activation_backward(dy, x, {}, Activation::swiglu, {.dbias = GradSink{}});
  at::set_num_threads(1);
  const ActivationGradients one = activation_backward(dy, x, {}, Activation::swiglu, {.dbias = GradSink{}});
  at::set_num_threads(threads);
  EXPECT_TRUE(same_bits(all.dx, one.dx) && same_bits(all.dbias, one.dbias));
}

TEST(Activation, WritesToItsOutputs) {
  const at::Tensor x = randn({70, 24}), dy = randn({70, 12}), z = at::empty({0, 24});
  const at::Tensor y = at::empty({70, 12}), sum = at::empty({24}), dx = x.clone();
  EXPECT_TRUE(activation_forward(x, {}, Activation::geglu, y).is_same(y));
  EXPECT_TRUE(same_bits(y, activation_forward(x, {}, Activation::geglu)));
  const ActivationGradients expected =
      activation_backward(dy, x, {}, Activation::geglu, {.dbias = GradSink{}});
  const ActivationGradients in_place =
      activation_backward(dy, dx, {}, Activation::geglu, {dx, GradSink{sum}});
  EXPECT_TRUE(in_place.dx.is_same(dx) && in_place.dbias.is_same(sum));
  EXPECT_TRUE(same_bits(dx, expected.dx) && same_bits(sum, expected.dbias));
  EXPECT_EQ(activation_forward(z, {}, Activation::geglu).sizes(), (at::IntArrayRef{0, 12}));
  const ActivationGradients nothing =
      activation_backward(at::empty({0, 12}), z, {}, Activation::geglu, {.dbias = GradSink{sum}});
  EXPECT_EQ(nothing.dbias.abs().sum().item<float>(), 0);
}

TEST(Activation, PropagatesNaN) {
  for (const Activation kind : activations) {
    const at::Tensor x = at::full({2, 2}, NAN);
    EXPECT_TRUE(activation_forward(x, {}, kind).isnan().all().item<bool>()) << static_cast<int>(kind);
  }
}

TEST(Activation, IsFiniteForLargeInputs) {
  const at::Tensor x = at::tensor({-1e4f, -100.f, 100.f, 1e4f});
  for (const Activation kind : {Activation::gelu, Activation::gelu_erf, Activation::silu}) {
    const at::Tensor y = activation_forward(x, {}, kind);
    EXPECT_TRUE(at::allclose(y, at::relu(x))) << static_cast<int>(kind);
    const at::Tensor dx = activation_backward(at::ones({4}), x, {}, kind).dx;
    EXPECT_TRUE(at::allclose(dx, at::tensor({0.f, 0.f, 1.f, 1.f}))) << static_cast<int>(kind);
  }
}

TEST(ColumnSum, AccumulatesInF32) {
  for (const auto type : float_types) {
    const at::Tensor x = randn({13, 37, 11}, type);
    const at::Tensor sum = column_sum(x);
    EXPECT_EQ(sum.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_CLOSE(sum, f64(x).sum(at::IntArrayRef{0, 1}), type == at::kDouble ? at::kDouble : at::kFloat);
  }
}

TEST(EmbeddingGrad, Accumulates) {
  for (const auto type : float_types) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor ids = at::tensor({3, 0, 3, 5, 3}, at::kLong), dy = randn({5, 8}, type),
                     sum = randn({6, 8}, sums), before = f64(sum).clone();
    embedding_grad_add_(sum, ids, dy);
    for (int64_t row = 0; row < 5; ++row) before[ids[row].item<int64_t>()] += f64(dy[row]);
    EXPECT_CLOSE(sum, before, sums);
  }
}

}  // namespace
}  // namespace teratron
