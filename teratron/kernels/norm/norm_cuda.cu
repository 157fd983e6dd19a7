// LayerNorm and RMSNorm, with what is added before (norm.h):
//   h = x + bias + residual, y = (h - mean) rstd gain + shift, rstd = 1 / sqrt(avg((h - mean)^2) + eps)
// A group, a block or (short rows) a warp, loops over rows; thread t keeps the 16-byte packs t, t + n, ...
// in registers between the sums and the result. Rows pass through shared memory, up to four in flight.
// Other widths and f64: one block per row, which is read again for each sum.
// Bytes: x and the residual are read once; h and y are written once. One H200: 0.72 to 0.86 of a copy.
#include <algorithm>

#include "teratron/kernels/common/dependent_launch.cuh"
#include "teratron/kernels/norm/launchers.h"
#include "teratron/kernels/norm/norm_device.cuh"

namespace teratron::cuda {
namespace {

/// h = x (+ added_bias) (+ residual) of N columns, rounded to T as stored.
template <int N, typename T, typename A>
__device__ void add_and_store(const NormForwardArgs& args, int64_t offset, int64_t column,
                              const A (&residual)[N], A (&h)[N]) {
  if (args.added_bias != nullptr) {
    A bias[N];
    widen(load<N>(static_cast<const T*>(args.added_bias) + column), bias);
#pragma unroll
    for (int i = 0; i < N; ++i) h[i] += bias[i];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) h[i] += residual[i];
  const Pack<T, N> sum = round_to_pack<T>(h);
  widen(sum, h);
  store<N>(static_cast<T*>(args.sum) + offset, sum);
}

/// Resident threads per SM, by register use.
constexpr int resident_threads(bool adds, int packs_per_thread) {
  return packs_per_thread == 1 || (packs_per_thread == 2 && !adds) ? 1024 : 512;
}

template <typename Group>
constexpr int max_threads = std::is_same_v<Group, WarpRows> ? 256 : max_row_threads;

/// Weight and bias of a thread's packs: in registers if they fit, else reloaded for every row.
template <typename Pipeline, int PER>
struct RowParameters {
  static constexpr int N = Pipeline::N;
  static constexpr bool in_registers = PER <= warp_packs;
  float gain[in_registers ? PER : 1][N], shift[in_registers ? PER : 1][N];

  __device__ void read(const NormShape& shape, const NormForwardArgs& args, const Pipeline& pipeline, int k) {
    using T = typename Pipeline::Element;
    load_gain<N, T>(shape, args.weight, pipeline.column(k), gain[in_registers ? k : 0]);
    load_parameter<N, T>(shape, args.bias, pipeline.column(k), shift[in_registers ? k : 0]);
  }
  __device__ void apply(int k, float rstd, float (&h)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
      h[i] = h[i] * rstd * gain[in_registers ? k : 0][i] + shift[in_registers ? k : 0][i];
  }
};

/// Loads h of this thread's packs; returns their sum.
template <bool ADDS, typename Pipeline, int PER, int N>
__device__ float read_row(const NormForwardArgs& args, const Pipeline& pipeline,
                          const typename Pipeline::Cursor& cursor, float (&h)[PER][N]) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (!pipeline.has(k)) continue;
    pipeline.read(cursor.stage, 0, k, h[k]);
    if constexpr (ADDS) {
      float residual[N] = {};
      if (args.residual != nullptr) pipeline.read(cursor.stage, 1, k, residual);
      add_and_store<N, typename Pipeline::Element>(args, pipeline.offset(cursor.row, k), pipeline.column(k),
                                                   residual, h[k]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) total += h[k][i];
  }
  return total;
}

/// h <- h - mean; returns the sum of squares.
template <typename Pipeline, int PER, int N>
__device__ float center(const Pipeline& pipeline, float mean, float (&h)[PER][N]) {
  float squares = 0;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (!pipeline.has(k)) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      h[k][i] -= mean;
      squares += h[k][i] * h[k][i];
    }
  }
  return squares;
}

/// x, and the residual if something is added.
template <typename T, bool ADDS, int PER, int STAGES, typename Group>
using ForwardPipeline = RowPipeline<T, (ADDS ? 2 : 1), PER, STAGES, Group>;

/// Groups loop over rows, with STAGES rows in flight. Thread t of n keeps the packs t, t + n, ... (PER of
/// them) of a row in registers. ADDS: something is added to x.
template <typename T, bool ADDS, int PER, int STAGES, typename Group>
__global__ void __launch_bounds__(max_threads<Group>, resident_threads(ADDS, PER) / max_threads<Group>)
    forward_rows(const __grid_constant__ NormShape shape, const __grid_constant__ NormForwardArgs args) {
  using Pipeline = ForwardPipeline<T, ADDS, PER, STAGES, Group>;
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ float shared[2][row_sums];
  const Pipeline pipeline = [&] {
    if constexpr (ADDS) return Pipeline(shape, {args.x, args.residual}, bytes);
    if constexpr (!ADDS) return Pipeline(shape, {args.x}, bytes);
  }();
  const float inverse_width = 1.0f / static_cast<float>(shape.width), eps = static_cast<float>(shape.eps);
  RowParameters<Pipeline, PER> parameters;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (parameters.in_registers && pipeline.has(k)) parameters.read(shape, args, pipeline, k);
  }
  wait_for_predecessor();
  release_successor();
  pipeline.start();
  for (RowCursor<Group> cursor; cursor.row < shape.rows; cursor.next(STAGES)) {
    pipeline.advance(cursor);
    float h[PER][Pipeline::N], mean = 0;
    float total[1] = {read_row<ADDS>(args, pipeline, cursor, h)};
    if (!shape.rms) {
      Group::sum(total, shared[cursor.stage % 2]);
      mean = total[0] * inverse_width;
    }
    float squares[1] = {center(pipeline, mean, h)};
    Group::sum(squares, shared[cursor.stage % 2] + 32);
    const float rstd = rsqrtf(squares[0] * inverse_width + eps);
    if (Group::thread() == 0) {
      static_cast<float*>(args.rstd)[cursor.row] = rstd;
      if (!shape.rms) static_cast<float*>(args.mean)[cursor.row] = mean;
    }
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipeline.has(k)) continue;
      if constexpr (!parameters.in_registers) parameters.read(shape, args, pipeline, k);
      parameters.apply(k, rstd, h[k]);
      store<Pipeline::N>(static_cast<T*>(args.y) + pipeline.offset(cursor.row, k), round_to_pack<T>(h[k]));
    }
  }
}

/// False if the device has too little shared memory for STAGES rows.
template <typename T, bool ADDS, int PER, int STAGES, typename Group = BlockRows>
bool launch_rows(const NormShape& shape, const NormForwardArgs& args, int threads, cudaStream_t stream) {
  const int bytes = ForwardPipeline<T, ADDS, PER, STAGES, Group>::bytes(threads);
  if (bytes > shared_memory_limit() - row_sums_bytes) return false;
  const auto kernel = forward_rows<T, ADDS, PER, STAGES, Group>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int64_t blocks = std::min(ceil_div(shape.rows, Group::groups(threads)),
                                  sm_count() * resident_blocks(resident_threads(ADDS, PER), threads));
  const LaunchShape launched{.grid = dim3(static_cast<unsigned>(blocks)),
                             .block = dim3(static_cast<unsigned>(threads)),
                             .shared_bytes = bytes};
  launch_dependent(kernel, launched, stream, shape, args);
  return true;
}

/// False if this path does not support the shape.
template <typename T, bool ADDS>
bool launch_rows(const NormShape& shape, const NormForwardArgs& args, cudaStream_t stream) {
  constexpr int row_overhead = 3;
  if (!aligned(args.x, args.residual, args.added_bias, args.weight, args.bias, args.sum, args.y))
    return false;
  if constexpr (!ADDS && !std::is_same_v<T, float>) {
    if (prefers_warp_rows(shape) &&
        launch_rows<T, ADDS, warp_packs, 4, WarpRows>(shape, args, max_threads<WarpRows>, stream))
      return true;
  }
  const RowTiling tiling = select_row_tiling(shape, pack_size<T>, row_overhead);
  switch (tiling.packs_per_thread) {
    case 1:
      return launch_rows<T, ADDS, 1, 4>(shape, args, tiling.threads, stream);
    case 2:
      return launch_rows<T, ADDS, 2, 4>(shape, args, tiling.threads, stream);
    case 4:
      return launch_rows<T, ADDS, 4, 2>(shape, args, tiling.threads, stream);
    default:
      return false;
  }
}

/// Any width, alignment and dtype; re-reads the row in each step.
template <typename T>
__global__ void __launch_bounds__(256) forward_any(NormShape shape, NormForwardArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[64];
  const int64_t row = blockIdx.x, start = row * shape.width;
  const T* const sum = static_cast<const T*>(args.sum == nullptr ? args.x : args.sum) + start;
  A total[1] = {0};
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A h[1] = {widen(static_cast<const T*>(args.x)[start + c])}, residual[1] = {0};
    if (args.residual != nullptr) residual[0] = widen(static_cast<const T*>(args.residual)[start + c]);
    if (args.sum != nullptr) add_and_store<1, T>(args, start + c, c, residual, h);
    total[0] += h[0];
  }
  block_sum(total, shared);
  const A mean = shape.rms ? A(0) : total[0] / static_cast<A>(shape.width);
  A squares[1] = {0};
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    const A centered = widen(sum[c]) - mean;
    squares[0] += centered * centered;
  }
  block_sum(squares, shared + 32);
  const A rstd = A(1) / sqrt(squares[0] / static_cast<A>(shape.width) + static_cast<A>(shape.eps));
  if (threadIdx.x == 0) {
    static_cast<A*>(args.rstd)[row] = rstd;
    if (!shape.rms) static_cast<A*>(args.mean)[row] = mean;
  }
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A gain[1], shift[1];
    load_gain<1, T>(shape, args.weight, c, gain);
    load_parameter<1, T>(shape, args.bias, c, shift);
    static_cast<T*>(args.y)[start + c] = round_to<T>((widen(sum[c]) - mean) * rstd * gain[0] + shift[0]);
  }
}

template <typename T>
void launch(const NormShape& shape, const NormForwardArgs& args, cudaStream_t stream) {
  const unsigned rows = static_cast<unsigned>(shape.rows);
  if constexpr (!std::is_same_v<T, double>) {
    const bool adds = args.sum != nullptr;
    if (adds ? launch_rows<T, true>(shape, args, stream) : launch_rows<T, false>(shape, args, stream)) return;
  }
  forward_any<T><<<rows, 256, 0, stream>>>(shape, args);
}

}  // namespace

void norm_forward(const NormShape& shape, const NormForwardArgs& args, CUstream_st* stream) {
  with_device_type(shape.dtype, [&]<typename T>(T) { launch<T>(shape, args, stream); });
  check_launch("norm_forward");
}

}  // namespace teratron::cuda
