// TMA descriptors: arrays in global memory whose boxes hopper.cuh copies.
#pragma once

#include <array>

#include <cuda.h>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/launch_fault.h"

namespace teratron::cuda {

/// An array of `rank` dimensions, the contiguous one first. A box has rows of 128 bytes, which are swizzled.
template <int rank>
struct TensorMapArgs {
  const void* data;  // 16-byte aligned
  CUtensorMapDataType type;
  std::array<uint64_t, rank> sizes;        // elements, at least one
  std::array<uint64_t, rank - 1> strides;  // bytes between elements of each dimension but the first
  std::array<uint32_t, rank> box;
};

inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &found),
               "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess)
      throw_launch_fault("cuTensorMapEncodeTiled", "not available in this driver");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encode;
}

template <int rank>
CUtensorMap make_tensor_map(const TensorMapArgs<rank>& args) {
  CUtensorMap map{};
  std::array<uint32_t, rank> steps;
  steps.fill(1);
  const CUresult result = tensor_map_encoder()(
      &map, args.type, rank, const_cast<void*>(args.data), args.sizes.data(), args.strides.data(),
      args.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw_launch_fault("cuTensorMapEncodeTiled", "failed");
  return map;
}

}  // namespace teratron::cuda
