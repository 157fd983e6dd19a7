#include "teratron/kernels/pointwise/activation.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/activation_cpu.h"
#include "teratron/kernels/pointwise/activation_cuda.h"

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

template <typename T>
void column_sum_cpu(const at::Tensor& x, const SumInto& into) {
  using A = Accumulator<T>;
  const auto [rows, n] = rows_of(x);
  const T* const from = x.const_data_ptr<T>();
  A* const to = into.out.mutable_data_ptr<A>();
  // Threads share the columns; each column is summed over blocks of rows, in one fixed order.
  constexpr int64_t block = 64;
  at::parallel_for(0, n, 256, [&, rows = rows, n = n](int64_t begin, int64_t end) {
    std::vector<A> partial(end - begin), sum(end - begin);
    for (int64_t first = 0; first < rows; first += block) {
      std::fill(partial.begin(), partial.end(), A(0));
      for (int64_t row = first; row < std::min(rows, first + block); ++row) {
        const T* const source = from + row * n + begin;
        for (int64_t i = 0; i < end - begin; ++i) partial[i] += static_cast<A>(source[i]);
      }
      for (int64_t i = 0; i < end - begin; ++i) sum[i] += partial[i];
    }
    for (int64_t i = begin; i < end; ++i) to[i] = into.adds ? to[i] + sum[i - begin] : sum[i - begin];
  });
}

/// To the loops of x's device.
void forward(const at::Tensor& x, const cuda::ActivationShape& shape, const cuda::ActivationArgs& args) {
  if (x.is_cuda()) return cuda::activation_forward(shape, args, current_stream(x));
  cpu::activation_forward(shape, args);
}

void backward(const at::Tensor& x, const cuda::ActivationShape& shape, const cuda::ActivationArgs& args) {
  if (x.is_cuda()) return cuda::activation_backward(shape, args, current_stream(x));
  cpu::activation_backward(shape, args);
}

}  // namespace

at::Tensor activation_forward(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                              at::Tensor y) {
  check_input(x, bias, activation);
  if (y.defined()) require_like(y, x, x.numel() / parts_of(activation), "y");
  if (!y.defined()) {
    auto sizes = x.sizes().vec();
    sizes.back() /= parts_of(activation);
    y = at::empty(sizes, x.options());
  }
  if (y.numel() == 0) return y;
  forward(x, shape_of(x, activation),
          {.x = address(x), .bias = address(bias), .dy = nullptr, .out = address(y)});
  return y;
}

namespace {

void check_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                    Activation activation) {
  check_input(x, bias, activation);
  require_like(dy, x, x.numel() / parts_of(activation), "dy");
}

}  // namespace

at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                               Activation activation, at::Tensor dx) {
  check_backward(dy, x, bias, activation);
  if (dx.defined()) require_like(dx, x, x.numel(), "dx");
  if (!dx.defined()) dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  backward(x, shape_of(x, activation),
           {.x = address(x), .bias = address(bias), .dy = address(dy), .out = address(dx)});
  return dx;
}

SummedGradient activation_backward_summed(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                          Activation activation, const SummedGradientInto& into) {
  check_backward(dy, x, bias, activation);
  if (into.dx.defined()) require_like(into.dx, x, x.numel(), "dx");
  const auto sums = x.options().dtype(accumulation_type(x));
  const SumInto sum = place_of_sum(into.column_sum, x.size(-1), sums);
  const SummedGradient result{into.dx.defined() ? into.dx : at::empty_like(x), sum.out};
  if (x.numel() == 0) {
    if (!sum.adds) sum.out.zero_();
    return result;
  }
  const cuda::ActivationShape shape = shape_of(x, activation);
  const int64_t partials = x.is_cuda() ? cuda::activation_partials(shape) : cpu::activation_partials(shape);
  const at::Tensor partial = at::empty({partials, x.size(-1)}, sums);
  backward(x, shape,
           {.x = address(x),
            .bias = address(bias),
            .dy = address(dy),
            .out = address(result.dx),
            .sum = row_sum(partial, sum)});
  return result;
}

at::Tensor column_sum(const at::Tensor& x, const SumInto& into) {
  require_float(x, "x");
  const RowShape rows = rows_of(x);
  const auto sums = x.options().dtype(accumulation_type(x));
  const SumInto place = place_of_sum(into, rows.width, sums);
  if (x.numel() == 0) {
    if (!place.adds) place.out.zero_();
  } else if (x.is_cuda()) {
    const at::Tensor partial =
        at::empty({cuda::column_sum_partials(rows.count, rows.width), rows.width}, sums);
    cuda::column_sum({.rows = rows.count,
                      .width = rows.width,
                      .dtype = dtype_of(x),
                      .x = address(x),
                      .sum = row_sum(partial, place)},
                     current_stream(x));
  } else {
    with_float_type(x, [&]<typename T>(T) { column_sum_cpu<T>(x, place); });
  }
  return place.out;
}

}  // namespace teratron
