#include "teratron/comm/nccl/copy_engines.h"

#include <ATen/ATen.h>

#include "teratron/comm/nccl/push_windows.h"
#include "teratron/kernels/common/reduce.h"

namespace teratron {

at::Tensor CopyEngines::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return available() ? memory_.empty(sizes, options) : at::empty(sizes, options);
}

bool CopyEngines::suits_reduce_scatter(const at::Tensor& output, ReduceOp op, int64_t size) {
  const bool is_sum = op == ReduceOp::sum || op == ReduceOp::avg;
  return is_sum && at::isFloatingType(output.scalar_type()) && output.nbytes() >= min_push_bytes &&
         size <= max_parts;
}

CopyEngineReduceScatter* CopyEngines::reduce_scatter() {
  if (!reduce_scatter_ && available()) reduce_scatter_.emplace(memory_, hosts_.rank(), hosts_.size());
  return reduce_scatter_ ? &*reduce_scatter_ : nullptr;
}

CopyEngineShift* CopyEngines::shift() {
  if (!shift_ && available()) shift_.emplace(memory_, hosts_.rank(), hosts_.size());
  return shift_ ? &*shift_ : nullptr;
}

}  // namespace teratron
