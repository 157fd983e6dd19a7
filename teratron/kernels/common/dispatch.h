// Tensor checks, dtype dispatch and column sums for the host code of all kernels. Internal to kernels.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "teratron/base/dtype.h"
#include "teratron/base/error.h"
#include "teratron/kernels/common/column_reduction.h"
#include "teratron/kernels/common/grad_sink.h"

namespace teratron {

/// A tensor viewed as rows of its last dimension.
struct RowShape {
  int64_t count;
  int64_t width;
};
RowShape rows_of(const at::Tensor& x);

/// The Dtype of a floating-point tensor.
Dtype dtype_of(const at::Tensor& x);

/// f64 for f64, f32 for everything narrower.
at::ScalarType accumulation_type(const at::Tensor& x);

/// bf16 or f16.
bool is_half(at::ScalarType type);

/// 16-byte aligned.
bool is_aligned(const at::Tensor& x);

/// Asserts that x is contiguous and of a dtype that the kernels support.
void require_float(const at::Tensor& x, const char* what);
/// Asserts that t is contiguous, has `numel` elements and like's device and dtype.
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

/// Address of the first element, or null for an undefined tensor.
void* address(const at::Tensor& x);

/// A sum over rows [width] for a launcher: its destination and its workspace.
class ColumnSum {
 public:
  ColumnSum() = default;  // nothing is summed
  /// The sink's tensor if it fits these options, else a new one; without a sink nothing is summed.
  ColumnSum(const std::optional<GradSink>& sink, int64_t width, const at::TensorOptions& options);
  /// Undefined without a sink.
  const at::Tensor& out() const { return sink_.out; }
  const GradSink& sink() const { return sink_; }
  /// Result of a sum over zero rows.
  void zero() const;
  /// Allocates the workspace, which lives as long as this object.
  cuda::ColumnReduction reduction(int64_t workspace_rows);

 private:
  GradSink sink_;
  at::Tensor workspace_;
};

/// Second stage on the CPU, in fixed order: adds up `rows` rows [width] of the workspace, which is
/// overwritten.
template <typename A>
void finalize_column_sums(const cuda::ColumnReduction& sum, int64_t rows, int64_t width) {
  A *const workspace = static_cast<A*>(sum.workspace), *const out = static_cast<A*>(sum.out);
  for (int64_t row = 1; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) workspace[i] += workspace[row * width + i];
  }
  for (int64_t i = 0; i < width; ++i) out[i] = sum.accumulate ? out[i] + workspace[i] : workspace[i];
}

}  // namespace teratron
