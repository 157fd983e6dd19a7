#include "teratron/kernels/pointwise/dropout.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/launchers.h"

namespace teratron {

DropoutMask make_dropout_mask(const Dropout& dropout, const at::Tensor& x) {
  TERATRON_ASSERT(dropout.p >= 0 && dropout.p <= 1, "dropout probability {}", dropout.p);
  const GlobalRows& where = dropout.where;
  const RowShape rows = rows_of(x);
  if (where.rows.defined()) {
    TERATRON_ASSERT(where.rows.scalar_type() == at::kLong && where.rows.is_contiguous() &&
                    where.rows.numel() == rows.count && where.rows.device() == x.device());
  }
  const int64_t columns = where.columns == 0 ? rows.width : where.columns;
  TERATRON_ASSERT(where.first_column >= 0 && where.first_column + rows.width <= columns,
                  "columns {} + {} of {}", where.first_column, rows.width, columns);
  return {.key = dropout.key,
          .threshold = static_cast<uint64_t>(std::llround(dropout.p * 0x1p32)),
          .scale = dropout.p < 1 ? 1 / (1 - dropout.p) : 0,
          .rows = where.rows.defined() ? where.rows.const_data_ptr<int64_t>() : nullptr,
          .first_row = where.first_row,
          .columns = columns,
          .first_column = where.first_column};
}

namespace {

template <typename A>
void multiply_by_mask(const DropoutMask& mask, int64_t row, A* x, int64_t n) {
  const uint64_t start = mask.row_start(row);
  const A scale = static_cast<A>(mask.scale);
  for (int64_t i = 0; i < n;) {
    const PhiloxWords words = philox(mask.key, (start + i) / 4);
    for (uint64_t k = (start + i) % 4; k < 4 && i < n; ++k, ++i) {
      x[i] = words.word[k] >= mask.threshold ? x[i] * scale : A(0);
    }
  }
}

template <typename T>
void run_cpu(const cuda::DropoutArgs& args) {
  using A = Accumulator<T>;
  const int64_t n = args.width;
  at::parallel_for(0, args.rows, std::max<int64_t>(1, 8192 / n), [&](int64_t begin, int64_t end) {
    std::vector<A> z(n);
    for (int64_t row = begin; row < end; ++row) {
      convert(static_cast<const T*>(args.x) + row * n, z.data(), n);
      if (args.bias != nullptr) {
        const T* const bias = static_cast<const T*>(args.bias);
        for (int64_t i = 0; i < n; ++i) z[i] += static_cast<A>(bias[i]);
      }
      if (args.mask.threshold != 0) multiply_by_mask(args.mask, row, z.data(), n);
      if (args.residual != nullptr) {
        const T* const residual = static_cast<const T*>(args.residual) + row * n;
        for (int64_t i = 0; i < n; ++i) z[i] += static_cast<A>(residual[i]);
      }
      convert(z.data(), static_cast<T*>(args.y) + row * n, n);
    }
  });
}

}  // namespace

at::Tensor bias_dropout_add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                            const Dropout& dropout) {
  require_float(x, "x");
  if (bias.defined()) require_like(bias, x, x.size(-1), "bias");
  if (residual.defined()) require_like(residual, x, x.numel(), "residual");
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  const RowShape rows = rows_of(x);
  const cuda::DropoutArgs args{.rows = rows.count,
                               .width = rows.width,
                               .dtype = dtype_of(x),
                               .x = address(x),
                               .bias = address(bias),
                               .residual = address(residual),
                               .y = address(y),
                               .mask = make_dropout_mask(dropout, x)};
  if (x.is_cuda()) {
    cuda::bias_dropout_add(args, current_stream(x));
  } else {
    with_float_type(x, [&]<typename T>(T) { run_cpu<T>(args); });
  }
  return y;
}

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout) {
  return bias_dropout_add(x, {}, {}, dropout);
}

}  // namespace teratron
