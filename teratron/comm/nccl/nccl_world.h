// Ranks as processes with one GPU each, over NCCL. Without CUDA, nccl_world() throws UserError(config).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_backend.h"

namespace teratron {

struct NcclOptions {
  int gpu = 0;
  std::function<void(const Fault&)> on_hang;  // see WorldOptions
};

/// E.g. "2.28.9"; nullopt in a build without CUDA and on a machine without a driver.
std::optional<std::string> nccl_version();

/// A World of tensors on GPU `gpu`, which becomes the current device. CPU tensors, barriers and bytes use the
/// messages of `backend`: barrier() waits for hosts, not for work queued on GPUs. Floating-point sums are in
/// NCCL's order, not in rank order (except large reduce-scatters), and max and min drop NaN.
std::unique_ptr<World> nccl_world(std::shared_ptr<ProcessBackend> backend, NcclOptions options);

}  // namespace teratron
