// The collectives of one group that copy engines run through symmetric memory. Internal to nccl_communicator.
#pragma once

#include <cstdint>
#include <optional>

#include "teratron/comm/nccl/copy_engine_reduce_scatter.h"
#include "teratron/comm/nccl/copy_engine_shift.h"
#include "teratron/comm/nccl/symmetric_memory.h"

namespace teratron {

/// Each part is made when it is first used. That is collective, and so is the constructor.
class CopyEngines {
 public:
  /// `hosts` is the same group, for messages between hosts. It must outlive this object.
  CopyEngines(ncclComm_t comm, Communicator& hosts, SymmetricMemory::OnRegister on_register)
      : hosts_(hosts), memory_(comm, hosts, std::move(on_register)) {}

  /// Whether all GPUs can access each other's memory. The others return null if not.
  bool available() const { return memory_.available(); }
  /// In symmetric memory, if available.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Whether pushing is supported, and not slower than NCCL's reduce-scatter over `size` ranks.
  static bool suits_reduce_scatter(const at::Tensor& output, ReduceOp op, int64_t size);
  CopyEngineReduceScatter* reduce_scatter();
  CopyEngineShift* shift();

 private:
  Communicator& hosts_;
  SymmetricMemory memory_;
  std::optional<CopyEngineReduceScatter> reduce_scatter_;
  std::optional<CopyEngineShift> shift_;
};

}  // namespace teratron
