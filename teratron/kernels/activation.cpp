#include "teratron/kernels/activation.h"

#include "teratron/kernels/activation_cuda.h"
#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/stream.h"

#pragma GCC optimize("O3")

namespace teratron {
namespace {

cuda::ActivationShape shape_of(const at::Tensor& x, Activation activation) {
  const RowShape rows = rows_of(x);
  return {.rows = rows.count,
          .width = rows.width / parts_of(activation),
          .dtype = dtype_of(x),
          .activation = activation};
}

void check_input(const at::Tensor& x, const at::Tensor& bias, Activation activation) {
  require_float(x, "x");
  TERATRON_ASSERT(x.size(-1) % parts_of(activation) == 0, "gate|up of odd width {}", x.size(-1));
  if (bias.defined()) require_like(bias, x, x.size(-1), "bias");
}

/// z in the type of the arithmetic.
at::Tensor pre_activation(const at::Tensor& x, const at::Tensor& bias) {
  const at::Tensor z = x.to(accumulation_type(x));
  return bias.defined() ? z + bias.to(z.scalar_type()) : z;
}

// ATen's elementwise kernels are vectorised; on the CPU the point is the right numbers at a fair speed, not
// the fusion.
at::Tensor apply(const at::Tensor& z, Activation activation) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return at::gelu(z, "tanh");
    case Activation::gelu_erf:
      return at::gelu(z, "none");
    case Activation::relu:
      return at::relu(z);
    case Activation::squared_relu:
      return at::relu(z).square_();
    case Activation::silu:
    case Activation::swiglu:
      return at::silu(z);
  }
  return z;
}

/// dy * derivative of apply at z.
at::Tensor apply_backward(const at::Tensor& dy, const at::Tensor& z, Activation activation) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return at::gelu_backward(dy, z, "tanh");
    case Activation::gelu_erf:
      return at::gelu_backward(dy, z, "none");
    case Activation::relu:
      return at::threshold_backward(dy, z, 0);
    case Activation::squared_relu:
      return at::relu(z).mul_(2).mul_(dy);
    case Activation::silu:
    case Activation::swiglu:
      return at::silu_backward(dy, z);
  }
  return dy;
}

template <typename T>
void column_sum_cpu(const at::Tensor& x, at::Tensor& out) {
  using A = Accumulator<T>;
  const auto [rows, n] = rows_of(x);
  const T* const from = x.const_data_ptr<T>();
  A* const to = out.mutable_data_ptr<A>();
  // Threads share the columns; each column is summed over blocks of rows, in one fixed order.
  constexpr int64_t block = 64;
  at::parallel_for(0, n, 256, [&, rows = rows, n = n](int64_t begin, int64_t end) {
    std::vector<A> partial(end - begin);
    for (int64_t first = 0; first < rows; first += block) {
      std::fill(partial.begin(), partial.end(), A(0));
      for (int64_t row = first; row < std::min(rows, first + block); ++row) {
        const T* const source = from + row * n + begin;
        for (int64_t i = 0; i < end - begin; ++i) partial[i] += static_cast<A>(source[i]);
      }
      for (int64_t i = begin; i < end; ++i) to[i] += partial[i - begin];
    }
  });
}

/// `result`, where it is to be.
at::Tensor put(const at::Tensor& place, const at::Tensor& result) {
  return place.defined() ? place.copy_(result) : result;
}

}  // namespace

at::Tensor activation_forward(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                              at::Tensor y) {
  check_input(x, bias, activation);
  if (y.defined()) require_like(y, x, x.numel() / parts_of(activation), "y");
  if (x.is_cuda()) {
    auto sizes = x.sizes().vec();
    sizes.back() /= parts_of(activation);
    if (!y.defined()) y = at::empty(sizes, x.options());
    if (y.numel() == 0) return y;
    cuda::activation_forward(shape_of(x, activation),
                             {.x = address(x), .bias = address(bias), .dy = nullptr, .out = address(y)},
                             current_stream(x));
    return y;
  }
  const at::Tensor z = pre_activation(x, bias);
  if (!is_gated(activation)) return put(y, apply(z, activation).to(x.scalar_type()));
  const auto halves = z.chunk(2, -1);
  return put(y, apply(halves[0], activation).mul_(halves[1]).to(x.scalar_type()));
}

namespace {

void check_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                    Activation activation) {
  check_input(x, bias, activation);
  require_like(dy, x, x.numel() / parts_of(activation), "dy");
}

/// dx in the type of the arithmetic.
at::Tensor backward_on_cpu(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                           Activation activation) {
  const at::Tensor z = pre_activation(x, bias);
  const at::Tensor grad = dy.to(z.scalar_type());
  if (!is_gated(activation)) return apply_backward(grad, z, activation);
  const auto halves = z.chunk(2, -1);
  const at::Tensor dgate = apply_backward(grad * halves[1], halves[0], activation);
  const at::Tensor dup = grad * apply(halves[0], activation);
  return at::cat({dgate, dup}, -1);
}

}  // namespace

at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                               Activation activation, at::Tensor dx) {
  check_backward(dy, x, bias, activation);
  if (dx.defined()) require_like(dx, x, x.numel(), "dx");
  if (!x.is_cuda()) return put(dx, backward_on_cpu(dy, x, bias, activation).to(x.scalar_type()));
  if (!dx.defined()) dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  cuda::activation_backward(shape_of(x, activation),
                            {.x = address(x), .bias = address(bias), .dy = address(dy), .out = address(dx)},
                            current_stream(x));
  return dx;
}

SummedGradient activation_backward_summed(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                          Activation activation, const SummedGradient& into) {
  check_backward(dy, x, bias, activation);
  if (into.dx.defined()) require_like(into.dx, x, x.numel(), "dx");
  if (!x.is_cuda() || x.numel() == 0) {
    const at::Tensor dx = backward_on_cpu(dy, x, bias, activation);
    return {put(into.dx, dx.to(x.scalar_type())), column_sum(dx, into.column_sum)};
  }
  const cuda::ActivationShape shape = shape_of(x, activation);
  const auto sums = x.options().dtype(accumulation_type(x));
  const SummedGradient result{into.dx.defined() ? into.dx : at::empty_like(x),
                              place_of_sum(into.column_sum, x.size(-1), sums)};
  const at::Tensor partial = at::empty({cuda::activation_partials(shape), x.size(-1)}, sums);
  cuda::activation_backward(shape,
                            {.x = address(x),
                             .bias = address(bias),
                             .dy = address(dy),
                             .out = address(result.dx),
                             .partial = address(partial),
                             .column_sum = address(result.column_sum)},
                            current_stream(x));
  return result;
}

at::Tensor column_sum(const at::Tensor& x, const at::Tensor& into) {
  require_float(x, "x");
  const RowShape rows = rows_of(x);
  const auto sums = x.options().dtype(accumulation_type(x));
  at::Tensor out = place_of_sum(into, rows.width, sums);
  if (x.is_cuda() && x.numel() > 0) {
    const at::Tensor partial =
        at::empty({cuda::column_sum_partials(rows.count, rows.width), rows.width}, out.options());
    cuda::column_sum({.rows = rows.count,
                      .width = rows.width,
                      .dtype = dtype_of(x),
                      .x = address(x),
                      .partial = address(partial),
                      .out = address(out)},
                     current_stream(x));
    return out;
  }
  out.zero_();
  with_float_type(x, [&]<typename T>(T) { column_sum_cpu<T>(x, out); });
  return out;
}

}  // namespace teratron
