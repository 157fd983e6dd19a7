#include "teratron/comm/host/tensor_fingerprint.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/base/tensor_dtype.h"

namespace teratron {

Dtype reducible_dtype(at::ScalarType type) {
  const std::optional<Dtype> dtype = dtype_of(type);
  TERATRON_ASSERT(dtype && can_reduce(*dtype), "cannot reduce {}", spelling_of(type));
  return *dtype;
}

std::string reduce_name(std::string_view operation, ReduceOp op) {
  static constexpr std::string_view kNames[] = {"sum", "avg", "max", "min"};
  return fmt::format("{}({})", operation, kNames[static_cast<size_t>(op)]);
}

CollectiveFingerprint fingerprint_of(std::string operation, const at::Tensor& tensor) {
  TERATRON_ASSERT(tensor.defined() && tensor.is_contiguous(), "{} needs a contiguous tensor", operation);
  return {std::move(operation), spelling_of(tensor.scalar_type()), tensor.sizes().vec()};
}

CollectiveFingerprint cpu_fingerprint_of(std::string operation, const at::Tensor& tensor) {
  CollectiveFingerprint fingerprint = fingerprint_of(std::move(operation), tensor);
  TERATRON_ASSERT(tensor.is_cpu(), "{} of CPU ranks: tensor on {}", fingerprint.operation,
                  tensor.device().str());
  return fingerprint;
}

void check_parts(const at::Tensor& whole, const at::Tensor& part, int64_t parts) {
  TERATRON_ASSERT(whole.is_contiguous() && part.is_contiguous() &&
                      whole.scalar_type() == part.scalar_type() && whole.numel() == parts * part.numel(),
                  "{} elements are not {} times {}", whole.numel(), parts, part.numel());
}

void check_all_to_all(const at::Tensor& output, const at::Tensor& input, int64_t parts) {
  TERATRON_ASSERT(output.is_contiguous() && input.is_contiguous() && output.nbytes() == input.nbytes() &&
                      input.numel() % parts == 0,
                  "{} elements are not divisible into {} parts", input.numel(), parts);
}

}  // namespace teratron
