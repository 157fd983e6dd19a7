#include "teratron/comm/nccl/nccl_world.h"

namespace teratron {

std::optional<std::string> nccl_version() {
  return std::nullopt;
}

std::unique_ptr<World> nccl_world(std::shared_ptr<ProcessBackend>, NcclOptions) {
  throw config_error({.what = "this program was built without CUDA, so it has no NCCL",
                      .where = "--backend",
                      .fix = "Use --backend processes, or build with CUDA kernels: ./run build"});
}

}  // namespace teratron
