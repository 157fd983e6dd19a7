#include "teratron/kernels/common/stream.h"

#include <c10/cuda/CUDAStream.h>

#include "teratron/base/error.h"

namespace teratron {

DeviceStream current_stream(const at::Tensor& x) {
  TERATRON_ASSERT(x.get_device() == c10::cuda::current_device(), "{} is not the current device",
                  x.device().str());
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace teratron
