#include "teratron/kernels/pointwise/activation.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/activation_cpu.h"
#include "teratron/kernels/pointwise/launchers.h"

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
void column_sum_cpu(const at::Tensor& x, const GradSink& sink) {
  using A = Accumulator<T>;
  const auto [rows, n] = rows_of(x);
  const T* const from = x.const_data_ptr<T>();
  A* const to = sink.out.mutable_data_ptr<A>();
  // Threads split the columns; each column is summed over blocks of rows in fixed order.
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
    for (int64_t i = begin; i < end; ++i) to[i] = sink.accumulate ? to[i] + sum[i - begin] : sum[i - begin];
  });
}

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

ActivationGradients activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                        Activation activation, const ActivationGradOutputs& outputs) {
  check_input(x, bias, activation);
  require_like(dy, x, x.numel() / parts_of(activation), "dy");
  if (outputs.dx.defined()) require_like(outputs.dx, x, x.numel(), "dx");
  ColumnSum dbias(outputs.dbias, x.size(-1), x.options().dtype(accumulation_type(x)));
  const ActivationGradients result{outputs.dx.defined() ? outputs.dx : at::empty_like(x), dbias.out()};
  if (x.numel() == 0) {
    dbias.zero();
    return result;
  }
  const cuda::ActivationShape shape = shape_of(x, activation);
  cuda::ActivationArgs args{
      .x = address(x), .bias = address(bias), .dy = address(dy), .out = address(result.dx)};
  if (outputs.dbias) {
    args.dbias = dbias.reduction(x.is_cuda() ? cuda::activation_workspace_rows(shape)
                                             : cpu::activation_workspace_rows(shape));
  }
  backward(x, shape, args);
  return result;
}

at::Tensor column_sum(const at::Tensor& x, const GradSink& sink) {
  require_float(x, "x");
  const auto [rows, width] = rows_of(x);
  ColumnSum sum(sink, width, x.options().dtype(accumulation_type(x)));
  if (x.numel() == 0) {
    sum.zero();
  } else if (x.is_cuda()) {
    cuda::column_sum({.rows = rows,
                      .width = width,
                      .dtype = dtype_of(x),
                      .x = address(x),
                      .sum = sum.reduction(cuda::column_sum_workspace_rows(rows, width))},
                     current_stream(x));
  } else {
    with_float_type(x, [&]<typename T>(T) { column_sum_cpu<T>(x, sum.sink()); });
  }
  return sum.out();
}

}  // namespace teratron
