#include "teratron/kernels/activation_cuda.h"
#include "teratron/kernels/activation_math.cuh"
#include "teratron/kernels/device.cuh"
#include "teratron/kernels/tiling.cuh"

namespace teratron::cuda {
namespace {

/// Calls f with the kind as a compile-time constant. The branch is the same for the whole grid.
template <typename F>
__device__ void with_plain(Activation kind, F&& f) {
  switch (kind) {
    case Activation::gelu:
      return f(std::integral_constant<Activation, Activation::gelu>{});
    case Activation::gelu_erf:
      return f(std::integral_constant<Activation, Activation::gelu_erf>{});
    case Activation::squared_relu:
      return f(std::integral_constant<Activation, Activation::squared_relu>{});
    case Activation::relu:
      return f(std::integral_constant<Activation, Activation::relu>{});
    default:
      return f(std::integral_constant<Activation, Activation::silu>{});
  }
}
template <typename F>
__device__ void with_gated(Activation kind, F&& f) {
  if (kind == Activation::swiglu) return f(std::integral_constant<Activation, Activation::swiglu>{});
  return f(std::integral_constant<Activation, Activation::geglu>{});
}

template <typename T, int N>
__global__ void __launch_bounds__(256) plain_forward(ActivationShape shape, ActivationArgs args) {
  using A = Accumulator<T>;
  const int64_t column = tile_column<N>();
  if (column >= shape.width) return;
  A bias[N];
  read_or_zero<N, T>(args.bias, column, bias);
  with_plain(shape.activation, [&](auto kind) {
    constexpr Activation f = decltype(kind)::value;
    walk_rows<4, Pack<T, N>>(
        shape.rows,
        [&](int64_t row, Pack<T, N>& x) {
          x = load<N>(static_cast<const T*>(args.x) + row * shape.width + column);
        },
        [&](int64_t row, Pack<T, N>& x) {
#pragma unroll
          for (int i = 0; i < N; ++i) x.v[i] = round_to<T>(value_of<f>(widen(x.v[i]) + bias[i]));
          store<N>(static_cast<T*>(args.out) + row * shape.width + column, x);
        });
  });
}

template <typename T, int N>
__global__ void __launch_bounds__(256) plain_backward(ActivationShape shape, ActivationArgs args) {
  using A = Accumulator<T>;
  const int64_t column = tile_column<N>();
  if (column >= shape.width) return;
  A bias[N];
  read_or_zero<N, T>(args.bias, column, bias);
  with_plain(shape.activation, [&](auto kind) {
    constexpr Activation f = decltype(kind)::value;
    walk_rows<2, Inputs<T, N, 2>>(
        shape.rows,
        [&](int64_t row, Inputs<T, N, 2>& in) {
          const int64_t offset = row * shape.width + column;
          in.pack[0] = load<N>(static_cast<const T*>(args.x) + offset);
          in.pack[1] = load<N>(static_cast<const T*>(args.dy) + offset);
        },
        [&](int64_t row, Inputs<T, N, 2>& in) {
          auto& [x, d] = in.pack;
#pragma unroll
          for (int i = 0; i < N; ++i) {
            d.v[i] = round_to<T>(widen(d.v[i]) * slope_of<f>(widen(x.v[i]) + bias[i]).slope);
          }
          store<N>(static_cast<T*>(args.out) + row * shape.width + column, d);
        });
  });
}

template <typename T, int N>
__global__ void __launch_bounds__(256) gated_forward(ActivationShape shape, ActivationArgs args) {
  using A = Accumulator<T>;
  const int64_t column = tile_column<N>();
  if (column >= shape.width) return;
  A gate_bias[N], up_bias[N];
  read_or_zero<N, T>(args.bias, column, gate_bias);
  read_or_zero<N, T>(args.bias, column + shape.width, up_bias);
  with_gated(shape.activation, [&](auto kind) {
    constexpr Activation f = decltype(kind)::value;
    walk_rows<2, Inputs<T, N, 2>>(
        shape.rows,
        [&](int64_t row, Inputs<T, N, 2>& in) {
          const T* const x = static_cast<const T*>(args.x) + row * 2 * shape.width + column;
          in.pack[0] = load<N>(x);
          in.pack[1] = load<N>(x + shape.width);
        },
        [&](int64_t row, Inputs<T, N, 2>& in) {
          auto& [gate, up] = in.pack;
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const A value = value_of<f>(widen(gate.v[i]) + gate_bias[i]);
            up.v[i] = round_to<T>(value * (widen(up.v[i]) + up_bias[i]));
          }
          store<N>(static_cast<T*>(args.out) + row * shape.width + column, up);
        });
  });
}

template <typename T, int N>
__global__ void __launch_bounds__(256) gated_backward(ActivationShape shape, ActivationArgs args) {
  using A = Accumulator<T>;
  const int64_t column = tile_column<N>();
  if (column >= shape.width) return;
  A gate_bias[N], up_bias[N];
  read_or_zero<N, T>(args.bias, column, gate_bias);
  read_or_zero<N, T>(args.bias, column + shape.width, up_bias);
  with_gated(shape.activation, [&](auto kind) {
    constexpr Activation f = decltype(kind)::value;
    walk_rows<2, Inputs<T, N, 3>>(
        shape.rows,
        [&](int64_t row, Inputs<T, N, 3>& in) {
          const T* const x = static_cast<const T*>(args.x) + row * 2 * shape.width + column;
          in.pack[0] = load<N>(x);
          in.pack[1] = load<N>(x + shape.width);
          in.pack[2] = load<N>(static_cast<const T*>(args.dy) + row * shape.width + column);
        },
        [&](int64_t row, Inputs<T, N, 3>& in) {
          auto& [gate, up, dy] = in.pack;
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const auto [value, slope] = slope_of<f>(widen(gate.v[i]) + gate_bias[i]);
            const A d = widen(dy.v[i]);
            gate.v[i] = round_to<T>(d * (widen(up.v[i]) + up_bias[i]) * slope);
            up.v[i] = round_to<T>(d * value);
          }
          T* const dx = static_cast<T*>(args.out) + row * 2 * shape.width + column;
          store<N>(dx, gate);
          store<N>(dx + shape.width, up);
        });
  });
}

enum class Pass { forward, backward };

template <typename T, int N>
void launch(Pass pass, const ActivationShape& shape, const ActivationArgs& args, cudaStream_t stream) {
  const Tiling t = tile_rows(ceil_div(shape.width, N), shape.rows);
  if (is_gated(shape.activation)) {
    if (pass == Pass::forward) {
      gated_forward<T, N><<<t.grid, t.block, 0, stream>>>(shape, args);
    } else {
      gated_backward<T, N><<<t.grid, t.block, 0, stream>>>(shape, args);
    }
  } else if (pass == Pass::forward) {
    plain_forward<T, N><<<t.grid, t.block, 0, stream>>>(shape, args);
  } else {
    plain_backward<T, N><<<t.grid, t.block, 0, stream>>>(shape, args);
  }
  check_launch("activation");
}

void dispatch(Pass pass, const ActivationShape& shape, const ActivationArgs& args, cudaStream_t stream) {
  with_device_type(shape.dtype, [&]<typename T>(T) {
    if (shape.width % pack_size<T> == 0 && aligned(args.x, args.bias, args.dy, args.out)) {
      launch<T, pack_size<T>>(pass, shape, args, stream);
    } else {
      launch<T, 1>(pass, shape, args, stream);
    }
  });
}

}  // namespace

void activation_forward(const ActivationShape& shape, const ActivationArgs& args, CUstream_st* stream) {
  dispatch(Pass::forward, shape, args, stream);
}

void activation_backward(const ActivationShape& shape, const ActivationArgs& args, CUstream_st* stream) {
  dispatch(Pass::backward, shape, args, stream);
}

}  // namespace teratron::cuda
