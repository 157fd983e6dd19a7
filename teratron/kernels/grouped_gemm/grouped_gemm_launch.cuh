// What both grouped kernels share: a producer warp and two consumer warpgroups per block, in clusters of two
// blocks (fused_gemm_tile.cuh), and their launch.
#pragma once

#pragma nv_diag_suppress 177  // before sm_90a, much of it has no use

#include "teratron/kernels/common/hopper.cuh"
#include "teratron/kernels/common/tensor_map.cuh"
#include "teratron/kernels/gemm/fused_gemm_mainloop.cuh"
#include "teratron/kernels/grouped_gemm/launchers.h"

namespace teratron::cuda::grouped {

using namespace hopper;
using fused_gemm::bf16, fused_gemm::blocks_per_cluster, fused_gemm::PipelineState, fused_gemm::swizzle_values,
    fused_gemm::tile_rows, fused_gemm::warpgroup, fused_gemm::warpgroup_rows;

constexpr int tile_columns = 256;
constexpr uint16_t all_blocks = (1 << blocks_per_cluster) - 1;

// One warpgroup of the producer and other helpers, two of consumers; registers per thread.
constexpr int helper_threads = warpgroup, threads = helper_threads + 2 * warpgroup;
constexpr int helper_registers = 40, consumer_registers = 232;
constexpr int registers = helper_registers * helper_threads + consumer_registers * 2 * warpgroup;

template <int stages>
struct Barriers {
  uint64_t full[stages], empty[stages];  // mbarriers

  /// By one thread; a cluster barrier must follow. `arrivals`: per stage, of threads that fill it.
  __device__ void init(int arrivals = 1) {
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(shared_address(&full[s]), arrivals);
      mbarrier_init(shared_address(&empty[s]), 2 * blocks_per_cluster);
    }
    fence_mbarrier_init();
  }
  /// By both consumers of both blocks: another load may overwrite the stage.
  __device__ void release(int stage) {
    const int thread = threadIdx.x % warpgroup;
    if (thread < blocks_per_cluster) mbarrier_arrive_cluster(shared_address(&empty[stage]), thread);
  }
};

/// Shared memory, aligned for wgmma.
template <typename Shared>
__device__ Shared& shared_memory() {
  extern __shared__ uint8_t memory[];
  // An offset, since the compiler must still see that the address is in shared memory.
  return *reinterpret_cast<Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
}

/// Warp of the block, warp-uniform.
__device__ inline int warp_index() {
  return __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
}
/// Consumer 0 or 1, warp-uniform.
__device__ inline int consumer() {
  return (warp_index() * 32 - helper_threads) / warpgroup;
}

/// TMA descriptor of `count` row-major matrices [rows, columns] of bf16, `stride` elements apart.
inline CUtensorMap stack_map(const void* data, std::array<int64_t, 3> sizes, int64_t stride,
                             std::array<int, 2> box) {
  const auto [count, rows, columns] = sizes;
  return make_tensor_map<3>(
      {.data = data,
       .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
       .sizes = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), static_cast<uint64_t>(count)},
       .strides = {columns * sizeof(bf16), stride * sizeof(bf16)},
       .box = {static_cast<uint32_t>(box[1]), static_cast<uint32_t>(box[0]), 1}});
}
inline CUtensorMap matrix_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  return make_tensor_map<2>({.data = data,
                             .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                             .sizes = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                             .strides = {columns * sizeof(bf16)},
                             .box = {swizzle_values, static_cast<uint32_t>(box_rows)}});
}

/// Whether the kernel was built for sm_90a with enough registers; otherwise warpgroups would deadlock.
template <typename Function>
bool is_built(Function* kernel) {
  cudaFuncAttributes built{};
  check_cuda(cudaFuncGetAttributes(&built, kernel), "grouped_gemm");
  return built.numRegs * threads >= registers;
}

/// On all SMs: the number of tiles is known to the device only.
template <typename Shared, typename Params>
void launch(void (*kernel)(Params), const Params& params, CUstream_st* stream) {
  constexpr int bytes = sizeof(Shared) + 1023;
  static_assert(bytes <= 227 << 10 && registers <= 64 << 10);
  if (!is_built(kernel)) throw_launch_fault("grouped_gemm", "compiled with too few registers");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "grouped_gemm");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks_per_cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(sm_count() / blocks_per_cluster * blocks_per_cluster));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "grouped_gemm");
}

}  // namespace teratron::cuda::grouped
