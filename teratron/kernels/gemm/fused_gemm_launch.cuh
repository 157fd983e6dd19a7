// Kernel entry point and host launch of the fused GEMMs.
#pragma once

#include <algorithm>

#include "teratron/kernels/common/launch_fault.h"
#include "teratron/kernels/common/tensor_map.cuh"
#include "teratron/kernels/gemm/fused_gemm_activation.cuh"
#include "teratron/kernels/gemm/fused_gemm_mainloop.cuh"
#include "teratron/kernels/gemm/fused_gemm_rope.cuh"

namespace teratron::cuda::fused_gemm {

template <typename T>
__device__ void epilogue(const Params& p, typename T::Shared& shared) {
  if constexpr (T::is_rope) {
    rope_epilogue<T>(p, shared);
  } else {
    activation_epilogue<T>(p, shared);
  }
}

template <typename T>
__global__ void __launch_bounds__(T::threads, 1) kernel(const __grid_constant__ Params p) {
  if constexpr (has_sm_90a) {
    extern __shared__ uint8_t memory[];
    auto& shared =
        *reinterpret_cast<typename T::Shared*>((reinterpret_cast<uintptr_t>(memory) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
      for (int s = 0; s < T::stages; ++s) {
        mbarrier_init(shared_address(&shared.full[s]), 1);
        mbarrier_init(shared_address(&shared.empty[s]), 2 * blocks_per_cluster);
      }
      fence_mbarrier_init();
    }
    cluster_sync();
    if (threadIdx.x < T::auxiliary_threads) {
      setmaxnreg_dec<T::auxiliary_registers>();
      if (threadIdx.x < 32) {
        if (elect_one()) load_operands<T>(p, shared);
      } else if (epilogue_thread() < T::epilogue_threads) {
        epilogue<T>(p, shared);
      }
    } else {
      setmaxnreg_inc<T::consumer_registers>();
      const int half = (static_cast<int>(threadIdx.x) - T::auxiliary_threads) / warpgroup;
      compute_tiles<T>(p, shared, __shfl_sync(0xFFFFFFFFu, half, 0));  // warp-uniform, and the compiler knows
    }
    cluster_sync();  // no block exits while another sends to it
  }
}

/// TMA descriptor of a row-major matrix, loaded in boxes of `box_rows` rows of 128 bytes; of null, zeros.
inline CUtensorMap tensor_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  if (data == nullptr) return {};
  return make_tensor_map<2>({.data = data,
                             .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                             .sizes = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                             .strides = {static_cast<uint64_t>(columns) * sizeof(bf16)},
                             .box = {swizzle_values, static_cast<uint32_t>(box_rows)}});
}

/// Otherwise the body is empty (not built for sm_90a), or warpgroups would deadlock on registers.
template <typename T>
bool is_built() {
  static const int registers = [] {
    cudaFuncAttributes built{};
    check_cuda(cudaFuncGetAttributes(&built, kernel<T>), "gemm_activation");
    return built.numRegs;
  }();
  return registers * T::threads >= T::registers;
}

template <typename T>
void launch_kernel(const Params& p, cudaStream_t stream) {
  constexpr int bytes = sizeof(typename T::Shared) + 1023;
  static_assert(bytes <= 227 << 10 && T::registers <= 64 << 10);
  if (!is_built<T>()) throw_launch_fault("gemm_activation", "compiled with too few registers");
  const auto function = kernel<T>;
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "gemm_activation");
  const int64_t tile_pairs =
      ceil_div(p.shape.rows, tile_rows * blocks_per_cluster) * ceil_div(p.shape.width, T::columns);
  const int64_t clusters = std::min<int64_t>(tile_pairs, sm_count() / blocks_per_cluster);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks_per_cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * blocks_per_cluster));
  config.blockDim = dim3(T::threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, function, p), "gemm_activation");
}

/// Whether the current device has the kernel and the shape has vertical pairs of tiles for all its SMs.
template <typename T>
bool can_launch(const FusedGemmShape& shape) {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const int64_t pairs =
      ceil_div(shape.rows, blocks_per_cluster * tile_rows) * ceil_div(shape.width, Tile256::tile_columns);
  if (major != 9 || shape.k == 0 || pairs * blocks_per_cluster < sm_count()) return false;
  return is_built<T>();
}

}  // namespace teratron::cuda::fused_gemm
