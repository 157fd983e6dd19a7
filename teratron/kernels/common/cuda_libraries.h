// The CUDA run time, libtorch_cuda, cuBLASLt, NCCL and cuDNN are loaded where there is an NVIDIA driver, and
// only there: elsewhere they would take more than half of the start-up time of every command. A torch without
// CUDA has none of them.
#pragma once

namespace teratron {

/// Whether this machine has an NVIDIA driver and torch its part for CUDA. If not, calling CUDA's libraries
/// ends the program.
bool has_cuda_libraries();
/// Whether the torch of this process has its part for CUDA.
bool torch_has_cuda();

}  // namespace teratron
