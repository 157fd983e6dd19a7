#include "teratron/kernels/common/dispatch.h"

#include "teratron/base/tensor_dtype.h"

namespace teratron {

RowShape rows_of(const at::Tensor& x) {
  TERATRON_ASSERT(x.dim() >= 1, "a scalar has no rows");
  const int64_t width = x.size(-1);
  return {width == 0 ? 0 : x.numel() / width, width};
}

Dtype dtype_of(const at::Tensor& x) {
  const std::optional<Dtype> dtype = dtype_of(x.scalar_type());
  TERATRON_ASSERT(dtype && x.is_floating_point(), "no kernel for {}", at::toString(x.scalar_type()));
  return *dtype;
}

bool is_half(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf;
}

at::ScalarType accumulation_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(address(x)) % 16 == 0;
}

void require_float(const at::Tensor& x, const char* what) {
  TERATRON_ASSERT(x.defined() && x.is_contiguous(), "{} is not contiguous", what);
  const auto type = x.scalar_type();
  TERATRON_ASSERT(type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf,
                  "{} is {}", what, at::toString(type));
}

void require_like(const at::Tensor& t, const at::Tensor& like, int64_t numel, const char* what) {
  TERATRON_ASSERT(t.defined() && t.is_contiguous(), "{} is not contiguous", what);
  TERATRON_ASSERT(t.device() == like.device(), "{} is on {}", what, t.device().str());
  TERATRON_ASSERT(t.scalar_type() == like.scalar_type(), "{} is {}", what, at::toString(t.scalar_type()));
  TERATRON_ASSERT(t.numel() == numel, "{} has {} elements, not {}", what, t.numel(), numel);
}

void* address(const at::Tensor& x) {
  return x.defined() ? x.data_ptr() : nullptr;
}

ColumnSum::ColumnSum(const std::optional<GradSink>& sink, int64_t width, const at::TensorOptions& options) {
  if (!sink) return;
  const at::Tensor& out = sink->out;
  const bool fits = out.defined() && out.is_contiguous() && out.numel() == width &&
                    out.scalar_type() == c10::typeMetaToScalarType(options.dtype()) &&
                    out.device() == options.device();
  sink_ = fits ? *sink : GradSink{at::empty({width}, options)};
}

void ColumnSum::zero() const {
  if (sink_.out.defined() && !sink_.accumulate) sink_.out.zero_();
}

cuda::ColumnReduction ColumnSum::reduction(int64_t workspace_rows) {
  if (!sink_.out.defined()) return {};
  workspace_ = at::empty({workspace_rows, sink_.out.numel()}, sink_.out.options());
  return {.workspace = address(workspace_), .out = address(sink_.out), .accumulate = sink_.accumulate};
}

}  // namespace teratron
