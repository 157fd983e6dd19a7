// wgmma of FP8 operands (common/hopper.cuh), which are k-major: rows of 128 values, swizzled by TMA.
#pragma once

#include "teratron/kernels/common/hopper.cuh"

namespace teratron::cuda::hopper {

#define TERATRON_IO(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TERATRON_IO16(i) TERATRON_IO(i), TERATRON_IO(i + 4), TERATRON_IO(i + 8), TERATRON_IO(i + 12)

// One instruction for each number of columns 2 N = 128 or 256 and type of a.
#define TERATRON_WGMMA_128(type)                                                          \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %66, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." type                                 \
      ".e4m3 "                                                                            \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "%64, %65, p, 1, 1;\n"                                                              \
      "}"                                                                                 \
      : TERATRON_IO16(0), TERATRON_IO16(16), TERATRON_IO16(32), TERATRON_IO16(48)         \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define TERATRON_WGMMA_256(type)                                                                          \
  asm volatile(                                                                                           \
      "{\n"                                                                                               \
      ".reg .pred p;\n"                                                                                   \
      "setp.ne.b32 p, %130, 0;\n"                                                                         \
      "wgmma.mma_async.sync.aligned.m64n256k32.f32." type                                                 \
      ".e4m3 "                                                                                            \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
      "%128, %129, p, 1, 1;\n"                                                                            \
      "}"                                                                                                 \
      : TERATRON_IO16(0), TERATRON_IO16(16), TERATRON_IO16(32), TERATRON_IO16(48), TERATRON_IO16(64),     \
        TERATRON_IO16(80), TERATRON_IO16(96), TERATRON_IO16(112)                                          \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))

/// d [64, 2 N] = (add: d +) a [64, 32] b [32, 2 N] of a in e4m3 or e5m2 and b in e4m3; d as that of wgmma().
template <bool a_e5m2>
__device__ void wgmma_fp8(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  if constexpr (a_e5m2) {
    TERATRON_WGMMA_128("e5m2");
  } else {
    TERATRON_WGMMA_128("e4m3");
  }
}
template <bool a_e5m2>
__device__ void wgmma_fp8(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  if constexpr (a_e5m2) {
    TERATRON_WGMMA_256("e5m2");
  } else {
    TERATRON_WGMMA_256("e4m3");
  }
}

#undef TERATRON_WGMMA_128
#undef TERATRON_WGMMA_256
#undef TERATRON_IO
#undef TERATRON_IO16

}  // namespace teratron::cuda::hopper
