#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/cuda/CUDAContextLight.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/kernels/gemm/gemm_heuristic.h"
#include "teratron/kernels/gemm/launchers.h"

namespace teratron::cuda {
namespace {

bool is_fp8(Dtype dtype) {
  return dtype == Dtype::f8_e4m3 || dtype == Dtype::f8_e5m2;
}

void check(cublasStatus_t status, const GemmArgs& args) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (!is_fp8(args.a.type)) {
    throw Fault(fmt::format("product of [{}, {}] by [{}, {}]: cuBLASLt returned {}", args.m, args.k, args.k,
                            args.n, cublasLtGetStatusString(status)));
  }
  throw Fault(
      fmt::format("FP8 product of [{}, {}] by [{}, {}]: cuBLASLt returned {}. FP8 needs a GPU of compute "
                  "capability 8.9 or higher; omit --fp8-format",
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

// cuBLAS is column-major: our row-major out [m, n] = a b^T is its out [n, m] = b^T a, and a k-major operand
// is its matrix [k, ...].
Description describe(const GemmArgs& args) {
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), args);
  Description description(handle);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, args.b.mn_major ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, args.a.mn_major ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (is_fp8(args.a.type)) {
    set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b.scale_inv);
    set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a.scale_inv);
    set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(args.fast_accumulation ? 1 : 0));
  }
  if (args.alpha_beta != nullptr) {
    set(description, CUBLASLT_MATMUL_DESC_POINTER_MODE, static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE));
  }
  if (args.bias == nullptr) return description;
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(args.out_type));
  return description;
}

Layout layout(const GemmArgs& args, Dtype type, const std::array<int64_t, 3>& rows_columns_stride) {
  const auto& [rows, columns, stride] = rows_columns_stride;
  cublasLtMatrixLayout_t handle = nullptr;
  check(cublasLtMatrixLayoutCreate(&handle, type_of(type), rows, columns, stride), args);
  return Layout(handle);
}
/// `count` rows of k elements.
Layout layout(const GemmArgs& args, const GemmOperand& operand, int64_t count) {
  if (operand.mn_major) return layout(args, operand.type, {count, args.k, operand.stride});
  return layout(args, operand.type, {args.k, count, operand.stride});
}

/// The power of two, at most 128, that divides the address.
uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 128;
  return static_cast<uint32_t>(address & (~address + 1));
}

template <typename T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  TERATRON_ASSERT(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value) ==
                      CUBLAS_STATUS_SUCCESS,
                  "attribute {}", static_cast<int>(attribute));
}

/// cuBLAS' matrix C; `out` with beta = 0 if there is no addend.
const void* matrix_c(const GemmArgs& args) {
  return args.addend != nullptr ? args.addend : args.out;
}

Preference preference(const GemmArgs& args) {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle), args);
  Preference result(handle);
  set(result, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(gemm_workspace));
  // Split-k reduces in f32.
  set(result, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(args.b.data));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(args.a.data));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(matrix_c(args)));
  set(result, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(args.out));
  return result;
}

using Heuristics = std::vector<cublasLtMatmulHeuristicResult_t>;

int attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which) {
  int value = 0;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof value, &written);
  return value;
}

/// Rows and columns of a tile of cuBLAS' (column-major) out.
std::array<int64_t, 2> tile_of(const cublasLtMatmulAlgo_t& algorithm) {
  switch (attribute(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID)) {
    case CUBLASLT_MATMUL_TILE_256x128:
      return {256, 128};
    case CUBLASLT_MATMUL_TILE_128x256:
      return {128, 256};
    case CUBLASLT_MATMUL_TILE_176x128:
      return {176, 128};
    case CUBLASLT_MATMUL_TILE_168x128:
      return {168, 128};
    case CUBLASLT_MATMUL_TILE_128x160:
      return {128, 160};
    default:
      return {0, 0};  // not measured
  }
}

size_t select(const Heuristics& found, const GemmArgs& args) {
  const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
  if (device.major != 9) return 0;
  std::vector<GemmCandidate> candidates;
  for (const auto& result : found) {
    const auto& [n, m] = tile_of(result.algo);
    candidates.push_back({.algorithm = attribute(result.algo, CUBLASLT_ALGO_CONFIG_ID),
                          .tile_m = m,
                          .tile_n = n,
                          .split_k = attribute(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM)});
  }
  // The first micro-batch writes a weight gradient, later ones add to it. Both must use the same kernel:
  // loading another module could deadlock while the device waits for a neighboring pipeline stage.
  const bool is_wgrad = args.a.mn_major || args.out_type == Dtype::f32;
  const GemmSize size{.m = args.m,
                      .n = args.n,
                      .k_bytes = args.k * (is_fp8(args.a.type) ? 1 : 2),
                      .has_addend = args.addend != nullptr || args.bias != nullptr || is_wgrad};
  return select_gemm(candidates, size, device.multiProcessorCount);
}

/// cuBLASLt's description of a GEMM.
struct Problem {
  Description description;
  Layout a, b, out;  // a and b in cuBLAS' order

  explicit Problem(const GemmArgs& args)
      : description(describe(args)),
        a(layout(args, args.b, args.n)),
        b(layout(args, args.a, args.m)),
        out(layout(args, args.out_type, {args.n, args.m, args.n})) {}
};

struct Selected {
  cublasLtMatmulAlgo_t algorithm;
  size_t index;  // among the candidates
};

Selected find_algorithm(const Problem& problem, const GemmArgs& args) {
  constexpr int max_candidates = 16;
  const Preference preferences = preference(args);
  Heuristics found(max_candidates);
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), problem.description.get(),
                                       problem.a.get(), problem.b.get(), problem.out.get(), problem.out.get(),
                                       preferences.get(), max_candidates, found.data(), &count),
        args);
  found.resize(static_cast<size_t>(count));
  std::erase_if(found, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  check(found.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS, args);
  const size_t index = select(found, args);
  return {found[index].algo, index};
}

/// Everything that the selection depends on.
using Key = std::array<int64_t, 19>;

Key key_of(const GemmArgs& args) {
  const auto number = [](Dtype type) { return static_cast<int64_t>(type); };
  return {at::cuda::current_device(),
          args.m,
          args.n,
          args.k,
          number(args.a.type),
          number(args.b.type),
          number(args.out_type),
          args.a.stride,
          args.b.stride,
          args.a.mn_major,
          args.b.mn_major,
          alignment(args.a.data),
          alignment(args.b.data),
          alignment(args.out),
          alignment(matrix_c(args)),
          args.addend != nullptr,
          args.bias != nullptr ? alignment(args.bias) : 0,
          args.fast_accumulation,
          args.alpha_beta != nullptr};
}

/// Cached: a query for so many candidates takes 0.15 ms.
Selected algorithm_of(const Problem& problem, const GemmArgs& args) {
  static std::mutex mutex;  // lint: allow(global-state): the result depends on the key alone
  // lint: allow(global-state): the same
  static std::map<Key, Selected> known;
  const std::lock_guard lock(mutex);
  const Key key = key_of(args);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  return known.emplace(key, find_algorithm(problem, args)).first->second;
}

}  // namespace

void gemm(const GemmArgs& args, CUstream_st* stream) {
  const Problem problem(args);
  const cublasLtMatmulAlgo_t algorithm = algorithm_of(problem, args).algorithm;
  const float host_alpha_beta[] = {1.0F, args.addend != nullptr ? 1.0F : 0.0F};
  const float* const alpha_beta = args.alpha_beta != nullptr ? args.alpha_beta : host_alpha_beta;
  check(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), problem.description.get(), alpha_beta,
                       args.b.data, problem.a.get(), args.a.data, problem.b.get(), alpha_beta + 1,
                       matrix_c(args), problem.out.get(), args.out, problem.out.get(), &algorithm,
                       args.workspace, gemm_workspace, stream),
        args);
}

size_t gemm_algorithm_index(const GemmArgs& args) {
  return algorithm_of(Problem(args), args).index;
}

}  // namespace teratron::cuda
