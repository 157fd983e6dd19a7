// 16 bytes from device memory if there are such, else zeros: without a branch, and without an instruction
// after the load that would wait for it, as a choice between the two has. Volatile: the loads stay in order,
// and before wait_for_predecessor() (dependent_launch.cuh).
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace teratron::cuda {

/// Read once by the kernel, so it needs no place in L1; no kernel writes it meanwhile.
__device__ inline uint4 load_once_or_zero(const void* p, bool valid) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred has;\nsetp.ne.b32 has, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@has ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<int>(valid)));
  return v;
}

__device__ inline uint4 load_or_zero(const void* p, bool valid) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred has;\nsetp.ne.b32 has, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@has ld.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<int>(valid)));
  return v;
}

}  // namespace teratron::cuda
