// Throws from .cu files, which do not include fmt. Internal to kernels.
#pragma once

namespace teratron::cuda {

[[noreturn]] void throw_launch_fault(const char* kernel, const char* error);

}  // namespace teratron::cuda
