// How the kernels that do something to tiles of their product are started.
#pragma once

#include <algorithm>

#include "teratron/kernels/common/launch_fault.h"
#include "teratron/kernels/gemm/gemm_activation_apply.cuh"
#include "teratron/kernels/gemm/gemm_activation_multiply.cuh"
#include "teratron/kernels/gemm/gemm_activation_rope.cuh"

namespace teratron::cuda::gemm_activation {

template <typename T>
__device__ void finish_tiles(const Params& p, typename T::Shared& shared) {
  if constexpr (T::turns) {
    turn_tiles<T>(p, shared);
  } else {
    activate_tiles<T>(p, shared);
  }
}

template <typename T>
__global__ void __launch_bounds__(T::threads, 1) kernel(const __grid_constant__ Params p) {
  if constexpr (available) {
    extern __shared__ uint8_t memory[];
    auto& shared =
        *reinterpret_cast<typename T::Shared*>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
      for (int s = 0; s < T::stages; ++s) {
        init_barrier(shared_address(&shared.arrived[s]), 1);
        init_barrier(shared_address(&shared.taken[s]), 2 * blocks_in_cluster);
      }
      init_barriers_done();
    }
    sync_cluster();
    if (threadIdx.x < T::helpers) {
      give_registers<T::few_registers>();
      if (threadIdx.x == 0) {
        copy_operands<T>(p, shared);
      } else if (threadIdx.x >= 32 && activator() < T::activators) {
        finish_tiles<T>(p, shared);
      }
    } else {
      take_registers<T::many_registers>();
      const int half = (static_cast<int>(threadIdx.x) - T::helpers) / group;
      multiply_tiles<T>(p, shared,
                        __shfl_sync(0xFFFFFFFFu, half, 0));  // known to the compiler as one for the warp
    }
    sync_cluster();  // no block leaves while another sends to it
  }
}

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // told here, not to whoever asks next
  throw_launch_fault("gemm_activation", cudaGetErrorString(error));
}

using Encode = decltype(&cuTensorMapEncodeTiled);

inline Encode encoder() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                           &found));
    if (found != cudaDriverEntryPointSuccess)
      throw_launch_fault("cuTensorMapEncodeTiled", "the driver lacks it");
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

/// A row-major matrix that is copied in boxes of `box_rows` rows of 128 bytes.
inline CUtensorMap matrix(const void* data, int64_t rows, int64_t columns, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(columns) * sizeof(bf16)};
  const cuuint32_t box[] = {row_values, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, row_bytes, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw_launch_fault("cuTensorMapEncodeTiled", "the matrix was refused");
  return map;
}

// Else the body is empty, not being built for sm_90a, or warpgroups would wait for registers for ever.
template <typename T>
bool is_built() {
  static const int registers = [] {
    cudaFuncAttributes built{};
    check(cudaFuncGetAttributes(&built, kernel<T>));
    return built.numRegs;
  }();
  return registers * T::threads >= T::registers;
}

template <typename T>
void launch_task(const Params& p, cudaStream_t stream) {
  constexpr int bytes = sizeof(typename T::Shared) + 1023;
  static_assert(bytes <= 227 << 10 && T::registers <= 64 << 10);
  if (!is_built<T>()) throw_launch_fault("gemm_activation", "it was built with too few registers");
  const auto function = kernel<T>;
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int64_t tiles =
      ceil_div(p.shape.rows, tile_rows * blocks_in_cluster) * ceil_div(p.shape.width, T::columns);
  const int64_t clusters = std::min<int64_t>(tiles, multiprocessors() / blocks_in_cluster);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks_in_cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * blocks_in_cluster));
  config.blockDim = dim3(T::threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, function, p));
}

/// Whether the current device has the kernel, and the shape has tiles, two below each other, for all its multiprocessors.
template <typename T>
bool can_launch(const GemmActivationShape& shape) {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const int64_t pairs =
      ceil_div(shape.rows, blocks_in_cluster * tile_rows) * ceil_div(shape.width, Wide::tile_columns);
  if (major != 9 || shape.k == 0 || pairs * blocks_in_cluster < multiprocessors()) return false;
  return is_built<T>();
}

}  // namespace teratron::cuda::gemm_activation
