#include "teratron/device/device_graph.h"

namespace teratron {

namespace {

class RepeatedWork : public DeviceGraph {
 public:
  explicit RepeatedWork(DeviceWork work) : work_(std::move(work)) {}
  void replay() override { work_(); }

 private:
  DeviceWork work_;
};

}  // namespace

std::unique_ptr<DeviceGraph> capture(const DeviceWork& work, at::Device device, const DeviceGraph* pool_of) {
  if (device.is_cpu()) return std::make_unique<RepeatedWork>(work);
  return capture_on_gpu(work, pool_of);
}

}  // namespace teratron
