// Builds without CUDA.
#include "teratron/base/error.h"
#include "teratron/train/device/device_graph.h"

namespace teratron {

std::unique_ptr<DeviceGraph> capture_on_gpu(const DeviceWork&, const DeviceGraph*) {
  TERATRON_ASSERT(false, "this build has no CUDA");
}

}  // namespace teratron
