#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/norm/norm_cuda.h"
#include "teratron/kernels/norm/norm_device.cuh"

namespace teratron::cuda {
namespace {

/// h = x (+ added_bias) (+ residual) of N columns, rounded to T as it is stored.
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

/// Of a multiprocessor, as a thread's packs leave it registers.
constexpr int resident_threads(bool adds, int packs_per_thread) {
  return packs_per_thread == 1 || (packs_per_thread == 2 && !adds) ? 1024 : 512;
}

template <typename Team>
constexpr int max_threads = std::is_same_v<Team, WarpRows> ? 256 : max_row_threads;

/// Gain and shift of a thread's packs: in registers where there are enough, else read whenever they are needed.
template <typename Pipe, int PER>
struct RowParameters {
  static constexpr int N = Pipe::N;
  static constexpr bool keeps = PER <= warp_packs;
  float gain[keeps ? PER : 1][N], shift[keeps ? PER : 1][N];

  __device__ void read(const NormShape& shape, const NormForwardArgs& args, const Pipe& pipe, int k) {
    using T = typename Pipe::Element;
    read_gain<N, T>(shape, args.weight, pipe.column(k), gain[keeps ? k : 0]);
    read_parameter<N, T>(shape, args.bias, pipe.column(k), shift[keeps ? k : 0]);
  }
  __device__ void apply(int k, float rstd, float (&h)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) h[i] = h[i] * rstd * gain[keeps ? k : 0][i] + shift[keeps ? k : 0][i];
  }
};

/// h of this thread's packs, and their sum.
template <bool ADDS, typename Pipe, int PER, int N>
__device__ float read_row(const NormForwardArgs& args, const Pipe& pipe, const typename Pipe::Turn& turn,
                          float (&h)[PER][N]) {
  float total = 0;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (!pipe.has(k)) continue;
    pipe.read(turn.stage, 0, k, h[k]);
    if constexpr (ADDS) {
      float residual[N] = {};
      if (args.residual != nullptr) pipe.read(turn.stage, 1, k, residual);
      add_and_store<N, typename Pipe::Element>(args, pipe.offset(turn.row, k), pipe.column(k), residual,
                                               h[k]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) total += h[k][i];
  }
  return total;
}

/// h <- h - mean; the sum of its squares.
template <typename Pipe, int PER, int N>
__device__ float center(const Pipe& pipe, float mean, float (&h)[PER][N]) {
  float squares = 0;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (!pipe.has(k)) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      h[k][i] -= mean;
      squares += h[k][i] * h[k][i];
    }
  }
  return squares;
}

/// x, and the residual where something is added.
template <typename T, bool ADDS, int PER, int STAGES, typename Team>
using ForwardPipe = RowPipe<T, (ADDS ? 2 : 1), PER, STAGES, Team>;

/// Teams take rows in turn, STAGES of them on their way. Thread t of n holds the packs t, t + n, ... (PER of them) of a row in
/// registers. ADDS: something is added to x.
template <typename T, bool ADDS, int PER, int STAGES, typename Team>
__global__ void __launch_bounds__(max_threads<Team>, resident_threads(ADDS, PER) / max_threads<Team>)
    forward_rows(const __grid_constant__ NormShape shape, const __grid_constant__ NormForwardArgs args) {
  using Pipe = ForwardPipe<T, ADDS, PER, STAGES, Team>;
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ float shared[2][row_sums];
  const Pipe pipe = [&] {
    if constexpr (ADDS) return Pipe(shape, {args.x, args.residual}, bytes);
    if constexpr (!ADDS) return Pipe(shape, {args.x}, bytes);
  }();
  const float inverse_width = 1.0f / static_cast<float>(shape.width), eps = static_cast<float>(shape.eps);
  RowParameters<Pipe, PER> parameters;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (parameters.keeps && pipe.has(k)) parameters.read(shape, args, pipe, k);
  }
  pipe.start();
  for (RowTurn<Team> turn; turn.row < shape.rows; turn.next(STAGES)) {
    pipe.advance(turn);
    float h[PER][Pipe::N], mean = 0;
    float total[1] = {read_row<ADDS>(args, pipe, turn, h)};
    if (!shape.rms) {
      Team::sum(total, shared[turn.stage % 2]);
      mean = total[0] * inverse_width;
    }
    float squares[1] = {center(pipe, mean, h)};
    Team::sum(squares, shared[turn.stage % 2] + 32);
    const float rstd = rsqrtf(squares[0] * inverse_width + eps);
    if (Team::thread() == 0) {
      static_cast<float*>(args.rstd)[turn.row] = rstd;
      if (!shape.rms) static_cast<float*>(args.mean)[turn.row] = mean;
    }
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipe.has(k)) continue;
      if constexpr (!parameters.keeps) parameters.read(shape, args, pipe, k);
      parameters.apply(k, rstd, h[k]);
      store<Pipe::N>(static_cast<T*>(args.y) + pipe.offset(turn.row, k), round_to_pack<T>(h[k]));
    }
  }
}

/// False where the device has too little shared memory for STAGES rows.
template <typename T, bool ADDS, int PER, int STAGES, typename Team = BlockRows>
bool launch_rows(const NormShape& shape, const NormForwardArgs& args, int threads, cudaStream_t stream) {
  const int bytes = ForwardPipe<T, ADDS, PER, STAGES, Team>::bytes(threads);
  if (bytes > shared_memory_limit() - row_sums_bytes) return false;
  const auto kernel = forward_rows<T, ADDS, PER, STAGES, Team>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int64_t wanted = ceil_div(shape.rows, Team::teams(threads)),
                most = multiprocessors() * blocks_at_once(resident_threads(ADDS, PER), threads);
  kernel<<<static_cast<unsigned>(wanted < most ? wanted : most), threads, bytes, stream>>>(shape, args);
  return true;
}

/// False where this path cannot take the shape.
template <typename T, bool ADDS>
bool launch_rows(const NormShape& shape, const NormForwardArgs& args, cudaStream_t stream) {
  constexpr int row_overhead = 3;
  if (!aligned(args.x, args.residual, args.added_bias, args.weight, args.bias, args.sum, args.y))
    return false;
  if constexpr (!ADDS && !std::is_same_v<T, float>) {
    if (are_for_warps(shape) &&
        launch_rows<T, ADDS, warp_packs, 4, WarpRows>(shape, args, max_threads<WarpRows>, stream))
      return true;
  }
  const RowPlan plan = plan_row(shape, pack_size<T>, row_overhead);
  switch (plan.packs_per_thread) {
    case 1:
      return launch_rows<T, ADDS, 1, 4>(shape, args, plan.threads, stream);
    case 2:
      return launch_rows<T, ADDS, 2, 4>(shape, args, plan.threads, stream);
    case 4:
      return launch_rows<T, ADDS, 4, 2>(shape, args, plan.threads, stream);
    default:
      return false;
  }
}

/// Any width, alignment and type; the row is read again for each step.
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
    const A centred = widen(sum[c]) - mean;
    squares[0] += centred * centred;
  }
  block_sum(squares, shared + 32);
  const A rstd = A(1) / sqrt(squares[0] / static_cast<A>(shape.width) + static_cast<A>(shape.eps));
  if (threadIdx.x == 0) {
    static_cast<A*>(args.rstd)[row] = rstd;
    if (!shape.rms) static_cast<A*>(args.mean)[row] = mean;
  }
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A gain[1], shift[1];
    read_gain<1, T>(shape, args.weight, c, gain);
    read_parameter<1, T>(shape, args.bias, c, shift);
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
