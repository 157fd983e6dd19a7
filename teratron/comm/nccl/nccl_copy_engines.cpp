// What NcclCommunicator does through symmetric memory and copy engines.
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/base/log.h"
#include "teratron/comm/host/tensor_fingerprint.h"
#include "teratron/comm/nccl/nccl_communicator.h"
#include "teratron/comm/nccl/push_windows.h"
#include "teratron/kernels/common/reduce.h"

namespace teratron {

/// Null if copy engines cannot access all ranks. Registering a window is a recorded collective.
SymmetricMemory* NcclCommunicator::symmetric_memory() {
  if (!symmetric_memory_) {
    symmetric_memory_.emplace(group_comm().get(), *host_, [this](size_t bytes, const auto& register_window) {
      const CollectiveFingerprint fingerprint{
          .operation = "window", .dtype = "Byte", .shape = {static_cast<int64_t>(bytes)}};
      issue(group_comm(), {.fingerprint = fingerprint, .sequence = group_->record(fingerprint)},
            [&](ncclComm_t, cudaStream_t) {
              register_window();
              return ncclSuccess;
            });
    });
    if (!symmetric_memory_->available() && rank() == 0) {
      notice(
          "{} have no NCCL symmetric memory (several hosts, or NCCL_WIN_ENABLE=0): their collectives do not "
          "overlap GEMMs",
          describe_ranks(group_->ranks().all()));
    }
  }
  return symmetric_memory_->available() ? &*symmetric_memory_ : nullptr;
}

at::Tensor NcclCommunicator::alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (options.device().is_cpu()) return host_->alloc_symmetric(sizes, options);
  const Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  SymmetricMemory* const memory = symmetric_memory();
  return memory ? memory->empty(sizes, options) : at::empty(sizes, options);
}

/// Null without symmetric memory, and where NCCL's reduce-scatter is as fast or the only one supported.
CopyEngineReduceScatter* NcclCommunicator::copy_engine_reduce_scatter(const at::Tensor& output, ReduceOp op) {
  const bool is_sum = op == ReduceOp::sum || op == ReduceOp::avg;
  if (!is_sum || !at::isFloatingType(output.scalar_type()) || output.nbytes() < min_push_bytes ||
      size() > max_parts) {
    return nullptr;
  }
  const Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  if (!copy_engine_reduce_scatter_ && symmetric_memory())
    copy_engine_reduce_scatter_.emplace(*symmetric_memory(), rank(), size());
  return copy_engine_reduce_scatter_ ? &*copy_engine_reduce_scatter_ : nullptr;
}

Work NcclCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  if (output.is_cpu()) return host_->reduce_scatter(output, input, op);
  check_parts(input, output, size());
  const CollectiveFingerprint fingerprint = call_of(reduce_name("reduce_scatter", op), output);
  if (CopyEngineReduceScatter* const copy_engines = copy_engine_reduce_scatter(output, op)) {
    return collective(fingerprint, {output, input}, [&](ncclComm_t, cudaStream_t) {
      return copy_engines->reduce_scatter(output, input, op, group_comm_->stream());
    });
  }
  return nccl_reduce_scatter(output, input, op);
}

Work NcclCommunicator::reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                                const ProduceParts& produce) {
  if (output.is_cpu()) return host_->reduce_scatter_pipelined(output, input, op, produce);
  check_parts(input, output, size());
  const CollectiveFingerprint fingerprint = call_of(reduce_name("reduce_scatter", op), output);
  if (CopyEngineReduceScatter* const copy_engines = copy_engine_reduce_scatter(output, op)) {
    return collective(fingerprint, {output, input}, [&](ncclComm_t, cudaStream_t) {
      const c10::cuda::CUDAStream& stream = group_comm_->stream();
      return copy_engines->reduce_scatter_produced(output, input, op, stream, [&](int64_t part) {
        produce(part, part + 1);
        ready_.record();
        ready_.block(stream);
      });
    });
  }
  produce(0, size());
  return nccl_reduce_scatter(output, input, op);
}

/// Null without symmetric memory.
CopyEngineShift* NcclCommunicator::copy_engine_shift() {
  const Lock lock(mutex_);
  TERATRON_ASSERT(!closed_);
  if (!copy_engine_shift_ && symmetric_memory())
    copy_engine_shift_.emplace(*symmetric_memory(), rank(), size());
  return copy_engine_shift_ ? &*copy_engine_shift_ : nullptr;
}

Work NcclCommunicator::shift(std::vector<ShiftOp> ops) {
  if (ops.empty()) return {};
  if (ops[0].received.is_cpu()) return host_->shift(std::move(ops));
  CopyEngineShift* const copy_engines = copy_engine_shift();
  if (!copy_engines) return Communicator::shift(std::move(ops));
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> distances;
  for (const auto& [received, sent, distance] : ops) {
    tensors.insert(tensors.end(), {received, sent});
    distances.push_back(distance);
  }
  // Ranks may send different sizes.
  const CollectiveFingerprint fingerprint =
      of_part({.operation = fmt::format("shift by {}", fmt::join(distances, ", "))});
  const auto enqueue = [&](ncclComm_t, cudaStream_t) {
    copy_engines->shift(ops);
    return ncclSuccess;
  };
  return collective(fingerprint, std::move(tensors), enqueue, copy_engines->stream());
}

}  // namespace teratron
