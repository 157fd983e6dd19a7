// The current CUDA stream, without CUDA's headers. Internal to kernels.
#pragma once

#include <ATen/core/Tensor.h>

struct CUstream_st;

namespace teratron {

using DeviceStream = CUstream_st*;

/// PyTorch's current stream of x's device, which must be the current device.
DeviceStream current_stream(const at::Tensor& x);

}  // namespace teratron
