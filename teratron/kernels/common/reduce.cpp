#include "teratron/kernels/common/reduce.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/launchers.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {
namespace {

// Elements per partial result: fixed, so that the order of additions does not depend on the number of
// threads.
constexpr int64_t block = 8192;

/// Sum of reduce(first, count) over blocks, in order.
template <typename R, typename F>
R sum_over_blocks(int64_t n, F&& reduce) {
  const int64_t blocks = (n + block - 1) / block;
  std::vector<R> partial(blocks);
  at::parallel_for(0, blocks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) partial[i] = reduce(i * block, std::min(block, n - i * block));
  });
  R total = 0;
  for (const R value : partial) total += value;
  return total;
}

cuda::FlatBuffer flat(const at::Tensor& x) {
  require_float(x, "x");
  return {.data = address(x), .n = x.numel(), .dtype = dtype_of(x)};
}

}  // namespace

at::Tensor sum_of_squares(const at::Tensor& x) {
  const cuda::FlatBuffer buffer = flat(x);
  at::Tensor out = at::zeros({}, x.options().dtype(at::kDouble));
  if (buffer.n == 0) return out;
  if (x.is_cuda()) {
    const at::Tensor workspace = at::empty({cuda::reduce_workspace_size(buffer.n)}, out.options());
    cuda::sum_of_squares(buffer, workspace.mutable_data_ptr<double>(), out.mutable_data_ptr<double>(),
                         current_stream(x));
    return out;
  }
  with_float_type(x, [&]<typename T>(T) {
    const T* const data = x.const_data_ptr<T>();
    *out.mutable_data_ptr<double>() = sum_over_blocks<double>(buffer.n, [&](int64_t first, int64_t count) {
      double lanes[8] = {};
      int64_t i = 0;
      for (; i + 8 <= count; i += 8) {
        for (int k = 0; k < 8; ++k) {
          const double value = static_cast<double>(data[first + i + k]);
          lanes[k] += value * value;
        }
      }
      for (; i < count; ++i)
        lanes[i % 8] += static_cast<double>(data[first + i]) * static_cast<double>(data[first + i]);
      return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
             ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    });
  });
  return out;
}

at::Tensor count_zeros(const at::Tensor& x) {
  const cuda::FlatBuffer buffer = flat(x);
  at::Tensor out = at::zeros({}, x.options().dtype(at::kLong));
  if (buffer.n == 0) return out;
  if (x.is_cuda()) {
    const at::Tensor workspace = at::empty({cuda::reduce_workspace_size(buffer.n)}, out.options());
    cuda::count_zeros(buffer, workspace.mutable_data_ptr<int64_t>(), out.mutable_data_ptr<int64_t>(),
                      current_stream(x));
    return out;
  }
  with_float_type(x, [&]<typename T>(T) {
    const T* const data = x.const_data_ptr<T>();
    *out.mutable_data_ptr<int64_t>() = sum_over_blocks<int64_t>(buffer.n, [&](int64_t first, int64_t count) {
      return std::count_if(data + first, data + first + count, [](T v) { return v == T(0); });
    });
  });
  return out;
}

void flag_nonfinite_(const at::Tensor& flag, const at::Tensor& x) {
  const cuda::FlatBuffer buffer = flat(x);
  TERATRON_ASSERT(flag.scalar_type() == at::kFloat && flag.numel() == 1 && flag.device() == x.device());
  if (buffer.n == 0) return;
  if (x.is_cuda()) {
    cuda::flag_nonfinite(buffer, flag.mutable_data_ptr<float>(), current_stream(x));
    return;
  }
  with_float_type(x, [&]<typename T>(T) {
    const T* const data = x.const_data_ptr<T>();
    const int64_t bad = sum_over_blocks<int64_t>(buffer.n, [&](int64_t first, int64_t count) {
      return std::count_if(data + first, data + first + count,
                           [](T v) { return !std::isfinite(static_cast<Accumulator<T>>(v)); });
    });
    if (bad > 0) *flag.mutable_data_ptr<float>() = 1;
  });
}

void scale_(const at::Tensor& x, const at::Tensor& factor) {
  const cuda::FlatBuffer buffer = flat(x);
  const bool wide = factor.scalar_type() == at::kDouble;
  TERATRON_ASSERT((wide || factor.scalar_type() == at::kFloat) && factor.numel() == 1 &&
                  factor.device() == x.device());
  if (buffer.n == 0) return;
  if (x.is_cuda()) {
    cuda::scale(buffer, factor.const_data_ptr(), wide, current_stream(x));
    return;
  }
  with_float_type(x, [&]<typename T>(T) {
    using A = Accumulator<T>;
    T* const data = x.mutable_data_ptr<T>();
    const A f = static_cast<A>(factor.item<double>());
    at::parallel_for(0, buffer.n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) data[i] = static_cast<T>(static_cast<A>(data[i]) * f);
    });
  });
}

void sum_parts_(const at::Tensor& out, const std::vector<at::Tensor>& parts, bool average) {
  const cuda::FlatBuffer buffer = flat(out);
  const auto count = static_cast<int64_t>(parts.size());
  TERATRON_ASSERT(count >= 1 && count <= max_parts, "{} parts", count);
  for (const at::Tensor& part : parts) require_like(part, out, buffer.n, "a part");
  if (buffer.n == 0) return;
  if (out.is_cuda()) {
    cuda::Parts args{.data = {}, .count = static_cast<int>(count)};
    static_assert(std::size(decltype(args.data){}) == max_parts);
    for (int64_t i = 0; i < count; ++i) args.data[i] = parts[i].const_data_ptr();
    cuda::sum_parts(buffer, args, average, current_stream(out));
    return;
  }
  with_float_type(out, [&]<typename T>(T) {
    using A = Accumulator<T>;
    T* const data = out.mutable_data_ptr<T>();
    const A divisor = average ? static_cast<A>(count) : A(1);
    for (int64_t i = 0; i < buffer.n; ++i) {
      A sum = 0;
      for (const at::Tensor& part : parts) sum += static_cast<A>(part.const_data_ptr<T>()[i]);
      data[i] = static_cast<T>(sum / divisor);
    }
  });
}

}  // namespace teratron
