// What every op of this layer needs to get from tensors to typed rows. Internal to kernels.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "teratron/base/dtype.h"
#include "teratron/base/error.h"
#include "teratron/kernels/common/grad_sink.h"
#include "teratron/kernels/common/row_sum.h"

namespace teratron {

/// A tensor seen as rows of its last dimension.
struct RowShape {
  int64_t count;
  int64_t width;
};
RowShape rows_of(const at::Tensor& x);

/// base's name of a floating-point tensor's type.
Dtype dtype_of(const at::Tensor& x);

/// f64 for f64, f32 for everything narrower.
at::ScalarType accumulation_type(const at::Tensor& x);

/// bf16 or f16.
bool is_half(at::ScalarType type);

/// At a multiple of 16 bytes.
bool is_aligned(const at::Tensor& x);

/// x is contiguous and of a type that the kernels compute with.
void require_float(const at::Tensor& x, const char* what);
/// t is contiguous, on like's device, of like's dtype and has `numel` elements.
void require_like(const at::Tensor& t, const at::Tensor& like, int64_t numel, const char* what);

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f(T{}) with the C++ type of the elements.
template <typename F>
void with_float_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f32:
      return f(float{});
    case Dtype::f64:
      return f(double{});
    case Dtype::bf16:
      return f(at::BFloat16{});
    case Dtype::f16:
      return f(at::Half{});
    default:
      TERATRON_ASSERT(false, "no kernel for {}", name_of(dtype));
  }
}

template <typename F>
void with_float_type(const at::Tensor& x, F&& f) {
  with_float_type(dtype_of(x), f);
}

template <typename To, typename From>
void convert(const From* from, To* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);
}

/// `into` where it can take a sum [n] with these options, else a new tensor.
SumInto place_of_sum(const SumInto& into, int64_t n, const at::TensorOptions& options);

/// Address of the first element, or null for an undefined tensor.
void* address(const at::Tensor& x);

/// For launchers; null if nothing is wanted.
cuda::RowSum row_sum(const at::Tensor& partial, const SumInto& into);

/// The second stage on the CPU, in one fixed order: the sum of `blocks` rows [width], which are used up.
template <typename A>
void add_partials(const cuda::RowSum& sum, int64_t blocks, int64_t width) {
  A *const partial = static_cast<A*>(sum.partial), *const out = static_cast<A*>(sum.out);
  for (int64_t block = 1; block < blocks; ++block) {
    for (int64_t i = 0; i < width; ++i) partial[i] += partial[block * width + i];
  }
  for (int64_t i = 0; i < width; ++i) out[i] = sum.adds ? out[i] + partial[i] : partial[i];
}

}  // namespace teratron
