#include "teratron/kernels/gemm_cuda.h"

#include <array>
#include <memory>

#include <ATen/cuda/CUDAContextLight.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron::cuda {
namespace {

bool is_fp8(Dtype dtype) {
  return dtype == Dtype::f8_e4m3 || dtype == Dtype::f8_e5m2;
}

void check(cublasStatus_t status, const GemmArgs& args) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (!is_fp8(args.a_type)) {
    throw Fault(fmt::format("product of [{}, {}] by [{}, {}]: cuBLASLt says {}", args.m, args.k, args.k,
                            args.n, cublasLtGetStatusString(status)));
  }
  throw Fault(
      fmt::format("FP8 product of [{}, {}] by [{}, {}]: cuBLASLt says {}. FP8 needs a GPU of compute "
                  "capability 8.9 or more; leave --fp8-format out on others",
                  args.m, args.k, args.k, args.n, cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f8_e4m3:
      return CUDA_R_8F_E4M3;
    case Dtype::f8_e5m2:
      return CUDA_R_8F_E5M2;
    case Dtype::bf16:
      return CUDA_R_16BF;
    case Dtype::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

template <auto destroy>
struct Deleter {
  template <typename T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
template <typename Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Deleter<destroy>>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <typename T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  TERATRON_ASSERT(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value) ==
                      CUBLAS_STATUS_SUCCESS,
                  "attribute {}", static_cast<int>(attribute));
}

// cuBLAS counts columns first: our row-major out [m, n] = a b^T is its out [n, m] = b^T a, with both operands
// contiguous along k.
Description describe(const GemmArgs& args) {
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), args);
  Description description(handle);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (is_fp8(args.a_type)) {
    set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_inverse);
    set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_inverse);
    set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(args.fast_accumulation ? 1 : 0));
  }
  if (args.bias == nullptr) return description;
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(args.out_type));
  return description;
}

Layout layout(const GemmArgs& args, Dtype type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t handle = nullptr;
  check(cublasLtMatrixLayoutCreate(&handle, type_of(type), rows, columns, rows), args);
  return Layout(handle);
}

/// The power of two, at most 256, that divides the address.
uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

template <typename T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  TERATRON_ASSERT(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value) ==
                      CUBLAS_STATUS_SUCCESS,
                  "attribute {}", static_cast<int>(attribute));
}

/// What `out` is computed from beside the product; `out`, of weight 0, if nothing.
const void* addend(const GemmArgs& args) {
  return args.addend != nullptr ? args.addend : args.out;
}

Preference preference(const GemmArgs& args) {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle), args);
  Preference result(handle);
  set(result, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(gemm_workspace));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(args.b));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(args.a));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(addend(args)));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(args.out));
  return result;
}

}  // namespace

void gemm(const GemmArgs& args, CUstream_st* stream) {
  const Description description = describe(args);
  const Layout a = layout(args, args.b_type, args.k, args.n);
  const Layout b = layout(args, args.a_type, args.k, args.m);
  const Layout out = layout(args, args.out_type, args.n, args.m);
  const Preference wanted = preference(args);
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, description.get(), a.get(), b.get(), out.get(), out.get(),
                                       wanted.get(), 1, &best, &found),
        args);
  check(found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED, args);
  const float one = 1.0F, beta = args.addend != nullptr ? 1.0F : 0.0F;
  check(cublasLtMatmul(handle, description.get(), &one, args.b, a.get(), args.a, b.get(), &beta, addend(args),
                       out.get(), args.out, out.get(), &best.algo, args.workspace, gemm_workspace, stream),
        args);
}

}  // namespace teratron::cuda
