#include "teratron/kernels/device.cuh"
#include "teratron/kernels/norm_cuda.h"
#include "teratron/kernels/norm_device.cuh"
#include "teratron/kernels/partials.cuh"

namespace teratron::cuda {
namespace {

constexpr int rows_per_chunk = 128;  // of the path for any width

/// The packs of one row that a thread works on.
template <typename T, int PER>
struct RowPacks {
  Pack<T, pack_size<T>> dy[PER], h[PER], extra[PER];
  float mean = 0, rstd = 0;

  __device__ void read(const NormShape& shape, const NormBackwardArgs& args, int64_t row) {
    constexpr int N = pack_size<T>;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      const int64_t column = (k * blockDim.x + threadIdx.x) * int64_t{N};
      if (column >= shape.width) continue;
      const int64_t offset = row * shape.width + column;
      dy[k] = load<N>(static_cast<const T*>(args.dy) + offset);
      h[k] = load<N>(static_cast<const T*>(args.sum) + offset);
      if (args.dresidual != nullptr) extra[k] = load<N>(static_cast<const T*>(args.dresidual) + offset);
    }
    rstd = static_cast<const float*>(args.rstd)[row];
    if (!shape.rms) mean = static_cast<const float*>(args.mean)[row];
  }
};

template <typename T, int PER, int N>
__device__ void read_gains(const NormShape& shape, const NormBackwardArgs& args, float (&gain)[PER][N]) {
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    const int64_t column = (k * blockDim.x + threadIdx.x) * int64_t{N};
    if (column < shape.width) read_gain<N, T>(shape, args.weight, column, gain[k]);
  }
}

/// Blocks take rows in turn; a thread keeps its columns' gains and the sums of their gradients in registers,
/// and reads the next row before it waits for the sums over the current one. Very wide rows (PER = 4) have no
/// registers left for the next row nor for the gains.
template <typename T, int PER>
__global__ void __launch_bounds__(max_row_threads)
    backward_in_registers(NormShape shape, NormBackwardArgs args) {
  constexpr int N = pack_size<T>;
  __shared__ float shared[2][64];
  constexpr bool ahead = PER < 4;
  float gain[PER][N], dweight[PER][N] = {}, dbias[PER][N] = {};
  RowPacks<T, PER> next;
  if (ahead && blockIdx.x < shape.rows) next.read(shape, args, blockIdx.x);
  int parity = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x, parity ^= 1) {
    RowPacks<T, PER> now = next;
    if (!ahead) now.read(shape, args, row);
    if (ahead && row + gridDim.x < shape.rows) next.read(shape, args, row + gridDim.x);
    if (!ahead || row == blockIdx.x) read_gains<T>(shape, args, gain);
    float sums[2] = {0, 0};  // of g and of g xhat
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if ((k * blockDim.x + threadIdx.x) * int64_t{N} >= shape.width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float dy = widen(now.dy[k].v[i]), xhat = (widen(now.h[k].v[i]) - now.mean) * now.rstd;
        const float g = dy * gain[k][i];
        dweight[k][i] += dy * xhat;
        dbias[k][i] += dy;
        sums[0] += g;
        sums[1] += g * xhat;
      }
    }
    block_sum(sums, shared[parity]);
    const float mean_g = shape.rms ? 0.0f : sums[0] / static_cast<float>(shape.width);
    const float mean_gx = sums[1] / static_cast<float>(shape.width);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      const int64_t column = (k * blockDim.x + threadIdx.x) * int64_t{N};
      if (column >= shape.width) continue;
      Pack<T, N> dx;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float xhat = (widen(now.h[k].v[i]) - now.mean) * now.rstd;
        float d = now.rstd * (widen(now.dy[k].v[i]) * gain[k][i] - mean_g - xhat * mean_gx);
        if (args.dresidual != nullptr) d += widen(now.extra[k].v[i]);
        dx.v[i] = round_to<T>(d);
      }
      store<N>(static_cast<T*>(args.dx) + row * shape.width + column, dx);
    }
  }
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    const int64_t column = (k * blockDim.x + threadIdx.x) * int64_t{N};
    if (column >= shape.width) continue;
    const int64_t offset = blockIdx.x * shape.width + column;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      static_cast<float*>(args.partial_dweight)[offset + i] = dweight[k][i];
      if (args.partial_dbias != nullptr) static_cast<float*>(args.partial_dbias)[offset + i] = dbias[k][i];
    }
  }
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
    const RowPlan plan = plan_row(shape, pack_size<T>);
    if (plan.packs_per_thread > 0 && aligned(args.dy, args.dresidual, args.sum, args.weight, args.dx)) {
      if (plan.packs_per_thread == 1) {
        backward_in_registers<T, 1><<<blocks, plan.threads, 0, stream>>>(shape, args);
      } else if (plan.packs_per_thread == 2) {
        backward_in_registers<T, 2><<<blocks, plan.threads, 0, stream>>>(shape, args);
      } else {
        backward_in_registers<T, 4><<<blocks, plan.threads, 0, stream>>>(shape, args);
      }
      return;
    }
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
  const int64_t per_multiprocessor = plan.threads >= 768 ? 1 : 768 / plan.threads;
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
