// libtorch_cuda, cuBLASLt, NCCL and cuDNN are loaded where there is an NVIDIA driver, and only there: on
// other machines they would take more than half of the start-up time of every command.
#pragma once

namespace teratron {

/// Whether this machine has an NVIDIA driver. Without one, calling CUDA's libraries ends the program.
bool has_cuda_libraries();

}  // namespace teratron
