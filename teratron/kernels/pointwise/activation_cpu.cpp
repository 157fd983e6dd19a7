#include "teratron/kernels/pointwise/activation_cpu.h"

#include <algorithm>
#include <cmath>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/vector_math.h"

namespace teratron::cpu {
namespace {

using cuda::ActivationArgs;
using cuda::ActivationShape;

constexpr int64_t rows_per_block = 64;
constexpr int64_t chunk = 512;  // values of a row: the working set fits L1

/// The activation of one vector, without the gate's product, and its derivative.
template <typename A>
struct Point {
  Vector<A> value, derivative;
};

template <Activation kind, typename A>
[[gnu::always_inline]] inline Point<A> point(const Vector<A>& z) {
  const Vector<A> zero(0), half(A(0.5)), one(1), two(2);
  if constexpr (kind == Activation::relu) {
    return {at::vec::maximum(z, zero), Vector<A>::blendv(zero, one, z > zero)};
  } else if constexpr (kind == Activation::squared_relu) {
    const Vector<A> r = at::vec::maximum(z, zero);
    return {r * r, two * r};
  } else if constexpr (kind == Activation::silu) {
    const Vector<A> s = one / (one + z.neg().exp());
    return {z * s, s * (one + z * (one - s))};
  } else if constexpr (kind == Activation::quick_gelu) {
    const Vector<A> slope(A(1.702)), s = one / (one + (slope * z).neg().exp());
    return {z * s, s * (one + slope * z * (one - s))};
  } else if constexpr (kind == Activation::gelu_erf) {
    const Vector<A> root_half(A(M_SQRT1_2)), density_at_0(A(M_2_SQRTPI * M_SQRT1_2 / 2));
    const Vector<A> cdf = half + half * (z * root_half).erf();
    return {z * cdf, cdf + z * density_at_0 * (z * z * half).neg().exp()};
  } else {
    // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
    static_assert(kind == Activation::gelu);
    const Vector<A> slope(A(M_2_SQRTPI * M_SQRT2)), cubic(A(0.044715));  // slope: 2 sqrt(2 / pi)
    const Vector<A> square = cubic * z * z;
    const Vector<A> s = one / (one + (slope * z * (one + square)).neg().exp());
    return {z * s, s + z * s * (one - s) * slope * (one + Vector<A>(3) * square)};
  }
}

/// Calls f.template operator()<kind, is_gated>() for an activation.
template <typename F>
void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::gelu:
      return f.template operator()<Activation::gelu, false>();
    case Activation::gelu_erf:
      return f.template operator()<Activation::gelu_erf, false>();
    case Activation::squared_relu:
      return f.template operator()<Activation::squared_relu, false>();
    case Activation::relu:
      return f.template operator()<Activation::relu, false>();
    case Activation::silu:
      return f.template operator()<Activation::silu, false>();
    case Activation::quick_gelu:
      return f.template operator()<Activation::quick_gelu, false>();
    case Activation::swiglu:
      return f.template operator()<Activation::silu, true>();
    case Activation::geglu:
      return f.template operator()<Activation::gelu, true>();
  }
}

/// A chunk of a row in the accumulation type, zero-padded to a whole vector.
template <typename T>
struct Values {
  using A = Accumulator<T>;
  A data[chunk + Vector<A>::size()];

  void load(const T* from, const T* bias, int64_t count) {
    convert(from, data, count);
    if (bias != nullptr) {
      for (int64_t i = 0; i < count; ++i) data[i] += static_cast<A>(bias[i]);
    }
    std::fill_n(data + count, Vector<A>::size(), A(0));
  }
  Vector<A> at(int64_t i) const { return Vector<A>::loadu(data + i); }
  void put(int64_t i, const Vector<A>& v) { v.store(data + i); }
};

/// Calls f(first, count) for the chunks of a row.
template <typename F>
void for_chunks(int64_t width, const F& f) {
  for (int64_t first = 0; first < width; first += chunk) f(first, std::min(chunk, width - first));
}

template <typename T>
const T* offset_or_null(const void* from, int64_t by) {
  return from == nullptr ? nullptr : static_cast<const T*>(from) + by;
}

template <typename T, Activation kind, bool gated>
void forward_row(const ActivationShape& shape, const ActivationArgs& args, int64_t row) {
  using A = Accumulator<T>;
  const int64_t n = shape.width, at = row * n * parts_of(shape.activation);
  Values<T> gate, up;
  for_chunks(n, [&](int64_t first, int64_t count) {
    gate.load(offset_or_null<T>(args.x, at + first), offset_or_null<T>(args.bias, first), count);
    if constexpr (gated)
      up.load(offset_or_null<T>(args.x, at + n + first), offset_or_null<T>(args.bias, n + first), count);
    for (int64_t i = 0; i < count; i += Vector<A>::size()) {
      const Vector<A> value = point<kind, A>(gate.at(i)).value;
      gate.put(i, gated ? value * up.at(i) : value);
    }
    convert(gate.data, static_cast<T*>(args.out) + row * n + first, count);
  });
}

/// Rounds and stores a chunk of the gradient, and adds it, unrounded, to `sum` unless null.
template <typename T>
void store_and_sum(const Values<T>& gradient, T* to, Accumulator<T>* sum, int64_t count) {
  convert(gradient.data, to, count);
  if (sum == nullptr) return;
  for (int64_t i = 0; i < count; ++i) sum[i] += gradient.data[i];
}

template <typename T, Activation kind, bool gated>
void backward_row(const ActivationShape& shape, const ActivationArgs& args, int64_t row,
                  Accumulator<T>* sum) {
  using A = Accumulator<T>;
  const int64_t n = shape.width, at = row * n * parts_of(shape.activation);
  T* const dx = static_cast<T*>(args.out) + at;
  const auto of_sum = [sum](int64_t i) { return sum == nullptr ? nullptr : sum + i; };
  Values<T> gate, up, dy;
  for_chunks(n, [&](int64_t first, int64_t count) {
    gate.load(offset_or_null<T>(args.x, at + first), offset_or_null<T>(args.bias, first), count);
    if constexpr (gated)
      up.load(offset_or_null<T>(args.x, at + n + first), offset_or_null<T>(args.bias, n + first), count);
    dy.load(offset_or_null<T>(args.dy, row * n + first), nullptr, count);
    for (int64_t i = 0; i < count; i += Vector<A>::size()) {
      const Point<A> p = point<kind, A>(gate.at(i));
      const Vector<A> g = dy.at(i);
      gate.put(i, gated ? g * up.at(i) * p.derivative : g * p.derivative);
      if constexpr (gated) up.put(i, g * p.value);
    }
    store_and_sum<T>(gate, dx + first, of_sum(first), count);
    if constexpr (gated) store_and_sum<T>(up, dx + n + first, of_sum(n + first), count);
  });
}

/// Calls f(row) for every row, in parallel.
template <typename F>
void for_rows(const ActivationShape& shape, const F& f) {
  const int64_t grain = std::max<int64_t>(1, 16384 / shape.width);
  at::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

/// Calls f(row, sum) for every row, in parallel over blocks of rows; f adds to its block's `sum` [width].
template <typename A, typename F>
void sum_rows(int64_t rows, int64_t width, const cuda::ColumnReduction& to, const F& f) {
  A* const workspace = static_cast<A*>(to.workspace);
  const int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      A* const sum = workspace + block * width;
      std::fill_n(sum, width, A(0));
      const int64_t last = std::min(rows, (block + 1) * rows_per_block);
      for (int64_t row = block * rows_per_block; row < last; ++row) f(row, sum);
    }
  });
  finalize_column_sums<A>(to, blocks, width);
}

}  // namespace

int64_t activation_workspace_rows(const ActivationShape& shape) {
  return (shape.rows + rows_per_block - 1) / rows_per_block;
}

void activation_forward(const ActivationShape& shape, const ActivationArgs& args) {
  with_float_type(shape.dtype, [&]<typename T>(T) {
    with_activation(shape.activation, [&]<Activation kind, bool gated>() {
      for_rows(shape, [&](int64_t row) { forward_row<T, kind, gated>(shape, args, row); });
    });
  });
}

void activation_backward(const ActivationShape& shape, const ActivationArgs& args) {
  const int64_t wide = shape.width * parts_of(shape.activation);
  with_float_type(shape.dtype, [&]<typename T>(T) {
    using A = Accumulator<T>;
    with_activation(shape.activation, [&]<Activation kind, bool gated>() {
      const auto row_with_sum = [&](int64_t row, A* sum) {
        backward_row<T, kind, gated>(shape, args, row, sum);
      };
      if (args.dbias.workspace == nullptr)
        return for_rows(shape, [&](int64_t row) { row_with_sum(row, nullptr); });
      sum_rows<A>(shape.rows, wide, args.dbias, row_with_sum);
    });
  });
}

}  // namespace teratron::cpu
