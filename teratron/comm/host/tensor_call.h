// What all communicators say and demand of tensors.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "teratron/comm/host/call.h"
#include "teratron/comm/host/cpu_reduce.h"

namespace teratron {

/// The element type, which must be one that reduce() knows.
Dtype reducible_dtype(at::ScalarType type);

/// "all_reduce(sum)"
std::string reduce_name(std::string_view operation, ReduceOp op);

/// The ledger's entry. The tensor must be contiguous (and on the CPU).
Call call_of(std::string operation, const at::Tensor& tensor);
Call cpu_call_of(std::string operation, const at::Tensor& tensor);

/// `whole` is as large as `parts` times `part` and of its type; both are contiguous.
void check_parts(const at::Tensor& whole, const at::Tensor& part, int64_t parts);

}  // namespace teratron
