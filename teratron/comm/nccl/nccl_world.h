// Ranks as processes with a GPU each, over NCCL. In a build without CUDA the function below throws
// UserError(config).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_ranks.h"

namespace teratron {

struct NcclOptions {
  int gpu = 0;
  std::function<void(const Fault&)> on_stuck;  // see WorldOptions
};

/// "2.28.9" of the library in use; nothing in a build without CUDA.
std::optional<std::string> nccl_version();

/// A World over tensors of GPU `gpu`, which becomes the current device. Tensors on the CPU go over the
/// messages of `ranks`, as barriers and bytes do: barrier() waits for hosts, not for what is queued on GPUs.
/// Sums of floating point are in NCCL's order, not in that of the ranks (but for large reduce-scatters), and max and min drop NaN.
std::unique_ptr<World> nccl_world(std::shared_ptr<ProcessRanks> ranks, NcclOptions options);

}  // namespace teratron
