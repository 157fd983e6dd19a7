#include <array>
#include <memory>

#include <ATen/cuda/CUDAContextLight.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/kernels/fp8_cuda.h"

namespace teratron::cuda {
namespace {

void check(cublasStatus_t status, const Fp8GemmArgs& args, const char* call = "a descriptor") {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Fault(
      fmt::format("FP8 product of [{}, {}] by [{}, {}]: cuBLASLt says {}. FP8 needs a GPU of compute "
                  "capability 8.9 or more; leave --fp8-format out on others",
                  args.m, args.k, args.k, args.n, cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cudaDataType_t type_of(Dtype dtype) {
  if (dtype == Dtype::bf16) return CUDA_R_16BF;
  return dtype == Dtype::f16 ? CUDA_R_16F : CUDA_R_32F;
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
Description describe(const Fp8GemmArgs& args) {
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), args);
  Description description(handle);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_inverse);
  set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_inverse);
  set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(args.fast_accumulation ? 1 : 0));
  if (args.bias == nullptr) return description;
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(args.out_type));
  return description;
}

Layout layout(const Fp8GemmArgs& args, cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t handle = nullptr;
  check(cublasLtMatrixLayoutCreate(&handle, type, rows, columns, rows), args);
  return Layout(handle);
}

Preference preference(const Fp8GemmArgs& args) {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle), args);
  Preference result(handle);
  const uint64_t workspace = fp8_gemm_workspace;
  cublasLtMatmulPreferenceSetAttribute(handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof workspace);
  return result;
}

}  // namespace

void fp8_gemm(const Fp8GemmArgs& args, CUstream_st* stream) {
  const Description description = describe(args);
  const Layout a = layout(args, type_of(args.b_format), args.k, args.n);
  const Layout b = layout(args, type_of(args.a_format), args.k, args.m);
  const Layout out = layout(args, type_of(args.out_type), args.n, args.m);
  const Preference wanted = preference(args);
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, description.get(), a.get(), b.get(), out.get(), out.get(),
                                       wanted.get(), 1, &best, &found),
        args, "its heuristic");
  check(found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED, args, "its best kernel");
  const float one = 1.0F, beta = args.add ? 1.0F : 0.0F;
  check(
      cublasLtMatmul(handle, description.get(), &one, args.b, a.get(), args.a, b.get(), &beta, args.out,
                     out.get(), args.out, out.get(), &best.algo, args.workspace, fp8_gemm_workspace, stream),
      args);
}

}  // namespace teratron::cuda
