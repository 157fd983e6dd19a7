// CUDA graphs: what a function issues to a GPU is captured once and from then on issued by one launch, without the host's
// work for every kernel.
//
// A graph repeats kernels with the addresses and numbers of the capture. What changes from launch to launch must
// therefore be the content of tensors that outlive the graph, never a number of the host.
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
  /// Issues it on the current stream.
  virtual void replay() = 0;
};

using DeviceWork = std::function<void()>;

/// Calls `work` and captures what it issues, backward included; nothing of it runs yet. Its temporary tensors lie in
/// memory of the graph's own, shared with `beside`: a graph that never runs at the same time; may be null. Waits for
/// the device. A CPU has nothing to capture: there each replay calls `work`.
/// UserError(config) where the work cannot be captured, as it waits for the device.
std::unique_ptr<DeviceGraph> capture(const DeviceWork& work, at::Device device, const DeviceGraph* beside);

/// The part of capture() that needs CUDA.
std::unique_ptr<DeviceGraph> capture_on_gpu(const DeviceWork& work, const DeviceGraph* beside);

}  // namespace teratron
