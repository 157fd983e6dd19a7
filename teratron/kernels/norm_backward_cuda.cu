#include "teratron/kernels/async_copy.cuh"
#include "teratron/kernels/norm_cuda.h"
#include "teratron/kernels/norm_device.cuh"
#include "teratron/kernels/partials.cuh"

namespace teratron::cuda {
namespace {

constexpr int rows_per_chunk = 128;  // of the path for any width

/// Rows on their way through shared memory. A thread reads back only what it copied itself, so no barrier is needed.
template <typename T, int PER, int STAGES>
struct RowPipe {
  static constexpr int N = pack_size<T>;
  using P = Pack<T, N>;
  enum Part { dy, sum, residual, parts };

  const NormShape& shape;
  const NormBackwardArgs& args;
  P* const packs;  // [STAGES][parts][PER][blockDim.x]

  __device__ int64_t column(int k) const { return (k * blockDim.x + threadIdx.x) * int64_t{N}; }
  __device__ P& at(int stage, Part part, int k) const {
    return packs[((stage * parts + part) * PER + k) * blockDim.x + threadIdx.x];
  }
  /// One copy group, empty past the last row.
  __device__ void fetch(int stage, int64_t row) const {
    if (row < shape.rows) {
#pragma unroll
      for (int k = 0; k < PER; ++k) {
        if (column(k) >= shape.width) continue;
        const int64_t offset = row * shape.width + column(k);
        copy_async(&at(stage, dy, k), static_cast<const T*>(args.dy) + offset);
        copy_async(&at(stage, sum, k), static_cast<const T*>(args.sum) + offset);
        if (args.dresidual != nullptr) {
          copy_async(&at(stage, residual, k), static_cast<const T*>(args.dresidual) + offset);
        }
      }
    }
    end_copy_group();
  }
  /// The block's row of partial sums.
  __device__ void store_sums(void* partial, const float (&sums)[PER][N]) const {
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (column(k) >= shape.width) continue;
      float* const out = static_cast<float*>(partial) + blockIdx.x * shape.width + column(k);
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] = sums[k][i];
    }
  }
};

struct RowStatistics {
  float mean = 0, rstd = 0;
  template <bool RMS>
  __device__ static RowStatistics read(const NormShape& shape, const NormBackwardArgs& args, int64_t row) {
    if (row >= shape.rows) return {};
    return {.mean = RMS ? 0.0f : static_cast<const float*>(args.mean)[row],
            .rstd = static_cast<const float*>(args.rstd)[row]};
  }
};

/// Blocks take rows in turn, STAGES of them on their way; a thread keeps its columns' gains and the sums of their
/// gradients in registers.
template <typename T, int PER, bool RMS, int STAGES>
__global__ void __launch_bounds__(max_row_threads) backward_rows(NormShape shape, NormBackwardArgs args) {
  using Pipe = RowPipe<T, PER, STAGES>;
  constexpr int N = Pipe::N;
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ float shared[2][64];
  const Pipe pipe{shape, args, reinterpret_cast<typename Pipe::P*>(bytes)};
  float gain[PER][N], dweight[PER][N] = {}, dbias[RMS ? 1 : PER][N] = {};
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if (pipe.column(k) < shape.width) read_gain<N, T>(shape, args.weight, pipe.column(k), gain[k]);
  }
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) pipe.fetch(stage, blockIdx.x + stage * int64_t{gridDim.x});
  RowStatistics next = RowStatistics::read<RMS>(shape, args, blockIdx.x);
  int stage = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const RowStatistics now = next;
    next = RowStatistics::read<RMS>(shape, args, row + gridDim.x);
    pipe.fetch((stage + STAGES - 1) % STAGES, row + (STAGES - 1) * int64_t{gridDim.x});
    await_copy_groups<STAGES - 1>();
    float sums[2] = {0, 0};  // of g xhat and, for the layer norm, of g
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (pipe.column(k) >= shape.width) continue;
      const auto dy = pipe.at(stage, Pipe::dy, k), h = pipe.at(stage, Pipe::sum, k);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float d = widen(dy.v[i]), xhat = (widen(h.v[i]) - now.mean) * now.rstd;
        dweight[k][i] += d * xhat;
        sums[0] += d * gain[k][i] * xhat;
        if constexpr (!RMS) {
          dbias[k][i] += d;
          sums[1] += d * gain[k][i];
        }
      }
    }
    block_sum(sums, shared[stage % 2]);
    const float mean_gx = sums[0] / static_cast<float>(shape.width);
    const float mean_g = sums[1] / static_cast<float>(shape.width);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (pipe.column(k) >= shape.width) continue;
      const auto dy = pipe.at(stage, Pipe::dy, k), h = pipe.at(stage, Pipe::sum, k);
      const auto extra = pipe.at(stage, Pipe::residual, k);
      Pack<T, N> dx;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float xhat = (widen(h.v[i]) - now.mean) * now.rstd;
        float d = now.rstd * (widen(dy.v[i]) * gain[k][i] - mean_g - xhat * mean_gx);
        if (args.dresidual != nullptr) d += widen(extra.v[i]);
        dx.v[i] = round_to<T>(d);
      }
      store<N>(static_cast<T*>(args.dx) + row * shape.width + pipe.column(k), dx);
    }
    stage = (stage + 1) % STAGES;
  }
  pipe.store_sums(args.partial_dweight, dweight);
  if constexpr (!RMS) pipe.store_sums(args.partial_dbias, dbias);
}

/// False where the device has too little shared memory for STAGES rows.
template <typename T, int PER, bool RMS, int STAGES>
bool launch_rows(const NormShape& shape, const NormBackwardArgs& args, int threads, cudaStream_t stream) {
  const int bytes = STAGES * 3 * PER * threads * 16;
  if (bytes > shared_memory_limit()) return false;
  const auto kernel = backward_rows<T, PER, RMS, STAGES>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<static_cast<unsigned>(norm_backward_blocks(shape)), threads, bytes, stream>>>(shape, args);
  return true;
}

/// False where this path cannot take the shape.
template <typename T, bool RMS>
bool launch_rows(const NormShape& shape, const NormBackwardArgs& args, cudaStream_t stream) {
  const RowPlan plan = plan_row(shape, pack_size<T>);
  if (!aligned(args.dy, args.dresidual, args.sum, args.weight, args.dx)) return false;
  if (plan.packs_per_thread == 1) return launch_rows<T, 1, RMS, 4>(shape, args, plan.threads, stream);
  if (plan.packs_per_thread == 2) return launch_rows<T, 2, RMS, 4>(shape, args, plan.threads, stream);
  return plan.packs_per_thread == 4 && launch_rows<T, 4, RMS, 2>(shape, args, plan.threads, stream);
}

/// dx for any width, alignment and type: one block per row.
template <typename T>
__global__ void __launch_bounds__(256) backward_any(NormShape shape, NormBackwardArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[64];
  const int64_t row = blockIdx.x, start = row * shape.width;
  const A rstd = static_cast<const A*>(args.rstd)[row];
  const A mean = shape.rms ? A(0) : static_cast<const A*>(args.mean)[row];
  const T* const dy = static_cast<const T*>(args.dy) + start;
  const T* const h = static_cast<const T*>(args.sum) + start;
  A sums[2] = {0, 0};
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A gain[1];
    read_gain<1, T>(shape, args.weight, c, gain);
    const A g = widen(dy[c]) * gain[0];
    sums[0] += g;
    sums[1] += g * (widen(h[c]) - mean) * rstd;
  }
  block_sum(sums, shared);
  const A mean_g = shape.rms ? A(0) : sums[0] / static_cast<A>(shape.width);
  const A mean_gx = sums[1] / static_cast<A>(shape.width);
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A gain[1];
    read_gain<1, T>(shape, args.weight, c, gain);
    A d = rstd * (widen(dy[c]) * gain[0] - mean_g - (widen(h[c]) - mean) * rstd * mean_gx);
    if (args.dresidual != nullptr) d += widen(static_cast<const T*>(args.dresidual)[start + c]);
    static_cast<T*>(args.dx)[start + c] = round_to<T>(d);
  }
}

/// Parameter gradients for any width: a block sums rows_per_chunk rows of 32 columns. Block (32, 8).
template <typename T>
__global__ void __launch_bounds__(256) parameters_any(NormShape shape, NormBackwardArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[2][8][32];
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  const int64_t first = blockIdx.y * int64_t{rows_per_chunk};
  A dweight = 0, dbias = 0;
  if (column < shape.width) {
    for (int64_t row = first + threadIdx.y; row < min(shape.rows, first + rows_per_chunk); row += 8) {
      const A dy = widen(static_cast<const T*>(args.dy)[row * shape.width + column]);
      const A mean = shape.rms ? A(0) : static_cast<const A*>(args.mean)[row];
      const A h = widen(static_cast<const T*>(args.sum)[row * shape.width + column]);
      dweight += dy * (h - mean) * static_cast<const A*>(args.rstd)[row];
      dbias += dy;
    }
  }
  shared[0][threadIdx.y][threadIdx.x] = dweight;
  shared[1][threadIdx.y][threadIdx.x] = dbias;
  __syncthreads();
  if (threadIdx.y > 1 || column >= shape.width) return;
  A* const out = static_cast<A*>(threadIdx.y == 0 ? args.partial_dweight : args.partial_dbias);
  if (out == nullptr) return;
  A sum = 0;
  for (int k = 0; k < 8; ++k) sum += shared[threadIdx.y][k][threadIdx.x];
  out[blockIdx.y * shape.width + column] = sum;
}

int pack_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 4 : 8;
}

template <typename T>
void launch(const NormShape& shape, const NormBackwardArgs& args, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(norm_backward_blocks(shape));
  if constexpr (!std::is_same_v<T, double>) {
    // The layer norm of this path sums its shift's gradient too, and the RMS norm has none.
    const bool has_shift = args.partial_dbias != nullptr;
    if (shape.rms && !has_shift && launch_rows<T, true>(shape, args, stream)) return;
    if (!shape.rms && has_shift && launch_rows<T, false>(shape, args, stream)) return;
  }
  backward_any<T><<<static_cast<unsigned>(shape.rows), 256, 0, stream>>>(shape, args);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.width, 32)), blocks);
  parameters_any<T><<<grid, dim3(32, 8), 0, stream>>>(shape, args);
}

}  // namespace

int64_t norm_backward_blocks(const NormShape& shape) {
  const int64_t chunks = ceil_div(shape.rows, rows_per_chunk);
  const RowPlan plan = shape.dtype == Dtype::f64 ? RowPlan{0, 0} : plan_row(shape, pack_of(shape.dtype));
  if (plan.packs_per_thread == 0) return chunks;
  const int64_t per_multiprocessor = plan.packs_per_thread > 1 ? 1 : 1024 / plan.threads;
  return std::max(chunks, std::min<int64_t>(shape.rows, multiprocessors() * per_multiprocessor));
}

void norm_backward(const NormShape& shape, const NormBackwardArgs& args, CUstream_st* stream) {
  with_device_type(shape.dtype, [&]<typename T>(T) {
    launch<T>(shape, args, stream);
    check_launch("norm_backward");
    add_partials<Accumulator<T>>({.first = args.partial_dweight,
                                  .second = args.partial_dbias,
                                  .first_out = args.dweight,
                                  .second_out = args.dbias,
                                  .count = norm_backward_blocks(shape),
                                  .width = shape.width},
                                 stream);
  });
}

}  // namespace teratron::cuda
