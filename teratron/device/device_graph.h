// CUDA graphs: the kernels of a function are captured once and then replayed by one launch, without host work
// per kernel.
//
// A graph replays kernels with the addresses and scalar arguments of the capture. Values that change between
// launches must therefore be the content of tensors that outlive the graph, never a host number.
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace teratron {

class DeviceGraph {
 public:
  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  virtual ~DeviceGraph() = default;
  /// Launches the graph on the current stream.
  virtual void replay() = 0;
};

using DeviceWork = std::function<void()>;

/// Calls `work` and captures the kernels it launches, backward included, without running them. Temporary
/// tensors are allocated from the graph's memory pool, which is shared with `pool_of`: a graph that never
/// runs at the same time, or null. Waits for the device. On a CPU each replay calls `work`. UserError(config)
/// if the work cannot be captured because it waits for the device.
std::unique_ptr<DeviceGraph> capture(const DeviceWork& work, at::Device device, const DeviceGraph* pool_of);

/// The part of capture() that needs CUDA.
std::unique_ptr<DeviceGraph> capture_on_gpu(const DeviceWork& work, const DeviceGraph* pool_of);

}  // namespace teratron
