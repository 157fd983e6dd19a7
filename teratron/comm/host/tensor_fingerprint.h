// Fingerprints and checks of tensors, common to all communicators.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "teratron/comm/ranks/cpu_reduce.h"
#include "teratron/comm/ranks/flight_recorder.h"

namespace teratron {

/// Asserts that reduce() supports the type.
Dtype reducible_dtype(at::ScalarType type);

/// "all_reduce(sum)"
std::string reduce_name(std::string_view operation, ReduceOp op);

/// The tensor must be contiguous; for cpu_fingerprint_of also on the CPU.
CollectiveFingerprint fingerprint_of(std::string operation, const at::Tensor& tensor);
CollectiveFingerprint cpu_fingerprint_of(std::string operation, const at::Tensor& tensor);

/// Asserts that `whole` has `parts` times the elements of `part` and its dtype, and that both are contiguous.
void check_parts(const at::Tensor& whole, const at::Tensor& part, int64_t parts);
/// Asserts that output and input of an all_to_all are contiguous, of equal size and divisible into `parts`.
void check_all_to_all(const at::Tensor& output, const at::Tensor& input, int64_t parts);

}  // namespace teratron
