#include "teratron/kernels/common/partials.cuh"
#include "teratron/kernels/norm/norm_cuda.h"
#include "teratron/kernels/norm/norm_device.cuh"

namespace teratron::cuda {
namespace {

constexpr int rows_per_chunk = 128;  // where rows fit into no registers
constexpr int row_overhead = 1;      // in packs: what a row costs a warp beside its packs

/// Which sums over the rows a kernel keeps, each with those before it: of dy xhat, of dy (layer norms), of dx.
enum Sums { of_gain, of_shift, of_dx };

/// Of a block whose warps take rows; it has a multiprocessor to itself, and a thread room for three sums of three packs.
constexpr int warp_row_threads = 384;

/// Of a multiprocessor, as the packs of a thread leave it registers.
constexpr int resident_threads(int packs_per_thread, bool sums_dx) {
  if (packs_per_thread == warp_packs) return warp_row_threads;
  if (packs_per_thread == 1) return sums_dx ? 896 : 1024;
  return packs_per_thread == 2 && sums_dx ? 384 : 512;
}
/// Of a block.
constexpr int max_threads(int packs_per_thread, bool sums_dx) {
  if (packs_per_thread == warp_packs) return warp_row_threads;
  if (!sums_dx) return max_row_threads;
  return packs_per_thread == 1 ? 128 : 384;
}

enum Part { dy_part, sum_part, residual_part, parts };

struct RowStatistics {
  float mean = 0, rstd = 0;
  template <bool RMS>
  __device__ static RowStatistics read(const NormShape& shape, const NormBackwardArgs& args, int64_t row) {
    if (row >= shape.rows) return {};
    return {.mean = RMS ? 0.0f : static_cast<const float*>(args.mean)[row],
            .rstd = static_cast<const float*>(args.rstd)[row]};
  }
};

/// A row, pack by pack: dy and xhat stay in registers where there are enough, else they are read again.
template <typename Pipe, int PER>
struct RowGradient {
  static constexpr int N = Pipe::N;
  static constexpr bool keeps = PER <= 2;
  float dy[keeps ? PER : 1][N], xhat[keeps ? PER : 1][N];

  __device__ void read(const Pipe& pipe, int stage, const RowStatistics& of, int k) {
    float(&x)[N] = xhat[keeps ? k : 0];
    pipe.read(stage, dy_part, k, dy[keeps ? k : 0]);
    pipe.read(stage, sum_part, k, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = (x[i] - of.mean) * of.rstd;
  }
};

/// A thread's gains and its sums over the rows.
template <typename Pipe, int PER, Sums SUMS>
struct RowSums {
  using T = typename Pipe::Element;
  static constexpr int N = Pipe::N;
  float gain[PER][N], dweight[PER][N] = {};
  float dbias[SUMS >= of_shift ? PER : 1][N] = {}, dx_sum[SUMS >= of_dx ? PER : 1][N] = {};

  __device__ RowSums(const NormShape& shape, const void* weight, const Pipe& pipe) {
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (pipe.has(k)) read_gain<N, T>(shape, weight, pipe.column(k), gain[k]);
    }
  }
  /// Adds pack k, and to `of_row` sum g xhat and, for the layer norm, sum g, with g = dy * gain.
  __device__ void add(int k, const float (&dy)[N], const float (&xhat)[N], float (&of_row)[2]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float product = dy[i] * xhat[i];
      dweight[k][i] += product;
      of_row[0] += product * gain[k][i];
      if constexpr (SUMS >= of_shift) {
        dbias[k][i] += dy[i];
        of_row[1] += dy[i] * gain[k][i];
      }
    }
  }
  __device__ void add_dx(int k, const float (&dx)[N]) {
    if constexpr (SUMS >= of_dx) {
#pragma unroll
      for (int i = 0; i < N; ++i) dx_sum[k][i] += dx[i];
    }
  }
  /// The block's row of partial sums, of teams that are the block.
  __device__ void store(const NormBackwardArgs& args, const Pipe& pipe) const {
    each([&](int which, int k,
             const float(&sum)[N]) { store_values(partial(args, which) + pipe.offset(blockIdx.x, k), sum); },
         pipe);
  }
  /// The same, of teams that are its warps. `shared`: f32 for each sum of each warp.
  __device__ void store_of_warps(const NormBackwardArgs& args, const Pipe& pipe, int width,
                                 float* shared) const {
    constexpr int arrays = SUMS + 1;
    each(
        [&](int which, int k, const float(&sum)[N]) {
          float* const to = shared + (Pipe::Team::team() * arrays + which) * width + pipe.column(k);
#pragma unroll
          for (int i = 0; i < N; i += 4)
            reinterpret_cast<float4&>(to[i]) = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
        },
        pipe);
    __syncthreads();
    for (int i = threadIdx.x; i < arrays * width; i += blockDim.x) {
      float sum = 0;
      for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += shared[warp * arrays * width + i];
      partial(args, i / width)[blockIdx.x * int64_t{width} + i % width] = sum;
    }
  }

 private:
  __device__ static float* partial(const NormBackwardArgs& args, int which) {
    return static_cast<float*>(which == of_gain    ? args.dweight.partial
                               : which == of_shift ? args.dbias.partial
                                                   : args.dx_sum.partial);
  }
  template <typename F>
  __device__ void each(F&& f, const Pipe& pipe) const {
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipe.has(k)) continue;
      f(of_gain, k, dweight[k]);
      if constexpr (SUMS >= of_shift) f(of_shift, k, dbias[k]);
      if constexpr (SUMS >= of_dx) f(of_dx, k, dx_sum[k]);
    }
  }
};

/// Teams take rows in turn, STAGES of them on their way:
///   dx = rstd (g - avg(g) - xhat avg(g xhat)) + dresidual
template <typename T, int PER, Sums SUMS, int STAGES, typename Team>
__global__ void __launch_bounds__(max_threads(PER, SUMS == of_dx),
                                  resident_threads(PER, SUMS == of_dx) / max_threads(PER, SUMS == of_dx))
    backward_rows(NormShape shape, NormBackwardArgs args) {
  constexpr bool RMS = SUMS == of_gain;
  using Pipe = RowPipe<T, parts, PER, STAGES, Team>;
  constexpr int N = Pipe::N;
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ float shared[2][row_sums];
  const Pipe pipe(shape, {args.dy, args.sum, args.dresidual}, bytes);
  RowSums<Pipe, PER, SUMS> over_rows(shape, args.weight, pipe);
  pipe.start();
  RowStatistics next = RowStatistics::read<RMS>(shape, args, Team::first_row());
  const float inverse_width = 1.0f / static_cast<float>(shape.width);
  for (RowTurn<Team> turn; turn.row < shape.rows; turn.next(STAGES)) {
    const RowStatistics now = next;
    next = RowStatistics::read<RMS>(shape, args, turn.row + Team::row_step());
    pipe.advance(turn);
    RowGradient<Pipe, PER> row;
    float sums[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipe.has(k)) continue;
      row.read(pipe, turn.stage, now, k);
      over_rows.add(k, row.dy[row.keeps ? k : 0], row.xhat[row.keeps ? k : 0], sums);
    }
    Team::sum(sums, shared[turn.stage % 2]);
    const float of_xhat = -now.rstd * sums[0] * inverse_width, constant = -now.rstd * sums[1] * inverse_width;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipe.has(k)) continue;
      if constexpr (!row.keeps) row.read(pipe, turn.stage, now, k);
      float dx[N] = {};
      if (args.dresidual != nullptr) pipe.read(turn.stage, residual_part, k, dx);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if constexpr (!RMS) dx[i] += constant;
        dx[i] += row.xhat[row.keeps ? k : 0][i] * of_xhat;
        dx[i] += row.dy[row.keeps ? k : 0][i] * (over_rows.gain[k][i] * now.rstd);
      }
      over_rows.add_dx(k, dx);
      store<N>(static_cast<T*>(args.dx) + pipe.offset(turn.row, k), round_to_pack<T>(dx));
    }
  }
  if constexpr (std::is_same_v<Team, WarpRows>) {
    __syncthreads();  // the last to read its rows
    over_rows.store_of_warps(args, pipe, static_cast<int>(shape.width), reinterpret_cast<float*>(bytes));
  } else {
    over_rows.store(args, pipe);
  }
}

/// False where the device has too little shared memory for STAGES rows.
template <typename T, int PER, Sums SUMS, int STAGES, typename Team = BlockRows>
bool launch_rows(const NormShape& shape, const NormBackwardArgs& args, int threads, cudaStream_t stream) {
  const int bytes = RowPipe<T, parts, PER, STAGES, Team>::bytes(threads);
  if (bytes > shared_memory_limit() - row_sums_bytes) return false;
  const auto kernel = backward_rows<T, PER, SUMS, STAGES, Team>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<static_cast<unsigned>(norm_backward_blocks(shape)), threads, bytes, stream>>>(shape, args);
  return true;
}

constexpr int stages = 4;

/// Where the device has the shared memory for it.
bool by_warps(const NormShape& shape) {
  using Pipe = RowPipe<__nv_bfloat16, parts, warp_packs, stages, WarpRows>;
  return are_for_warps(shape) && Pipe::bytes(warp_row_threads) <= shared_memory_limit() - row_sums_bytes;
}

/// False where this path cannot take the shape.
template <typename T, Sums SUMS>
bool launch_rows(const NormShape& shape, const NormBackwardArgs& args, cudaStream_t stream) {
  if (!aligned(args.dy, args.dresidual, args.sum, args.weight, args.dx)) return false;
  if constexpr (!std::is_same_v<T, float>) {
    if (by_warps(shape))
      return launch_rows<T, warp_packs, SUMS, stages, WarpRows>(shape, args, warp_row_threads, stream);
  }
  const RowPlan plan = plan_row(shape, pack_size<T>, row_overhead);
  if (plan.packs_per_thread == 1) return launch_rows<T, 1, SUMS, stages>(shape, args, plan.threads, stream);
  if (plan.packs_per_thread == 2) return launch_rows<T, 2, SUMS, stages>(shape, args, plan.threads, stream);
  if constexpr (SUMS < of_dx) {
    return plan.packs_per_thread == 4 && launch_rows<T, 4, SUMS, 2>(shape, args, plan.threads, stream);
  }
  return false;
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

/// The sums for any width, after backward_any: a block sums its share of the rows of 32 columns. Block (32, 8).
template <typename T>
__global__ void __launch_bounds__(256) sums_any(NormShape shape, NormBackwardArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[3][8][32];
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  const int64_t count = (shape.rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * count;
  A dweight = 0, dbias = 0, dx = 0;
  if (column < shape.width) {
    for (int64_t row = first + threadIdx.y; row < min(shape.rows, first + count); row += 8) {
      const A dy = widen(static_cast<const T*>(args.dy)[row * shape.width + column]);
      const A mean = shape.rms ? A(0) : static_cast<const A*>(args.mean)[row];
      const A h = widen(static_cast<const T*>(args.sum)[row * shape.width + column]);
      dweight += dy * (h - mean) * static_cast<const A*>(args.rstd)[row];
      dbias += dy;
      if (shape.sums_dx) dx += widen(static_cast<const T*>(args.dx)[row * shape.width + column]);
    }
  }
  shared[0][threadIdx.y][threadIdx.x] = dweight;
  shared[1][threadIdx.y][threadIdx.x] = dbias;
  shared[2][threadIdx.y][threadIdx.x] = dx;
  __syncthreads();
  if (threadIdx.y > 2 || column >= shape.width) return;
  void* const partials[] = {args.dweight.partial, args.dbias.partial, args.dx_sum.partial};
  A* const out = static_cast<A*>(partials[threadIdx.y]);
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
    const bool has_shift = args.dbias.partial != nullptr;
    if (shape.rms && !has_shift && launch_rows<T, of_gain>(shape, args, stream)) return;
    if (shape.sums_dx) {
      if (launch_rows<T, of_dx>(shape, args, stream)) return;
    } else if (!shape.rms && has_shift && launch_rows<T, of_shift>(shape, args, stream)) {
      return;
    }
  }
  backward_any<T><<<static_cast<unsigned>(shape.rows), 256, 0, stream>>>(shape, args);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.width, 32)), blocks);
  sums_any<T><<<grid, dim3(32, 8), 0, stream>>>(shape, args);
}

}  // namespace

bool norm_backward_can_sum_dx(const NormShape& shape) {
  if (shape.rms || shape.dtype == Dtype::f64) return false;
  if (by_warps(shape)) return true;
  const auto [threads, packs] = plan_row(shape, pack_of(shape.dtype), row_overhead);
  return (packs == 1 || packs == 2) && threads <= max_threads(packs, true);
}

int64_t norm_backward_blocks(const NormShape& shape) {
  if (by_warps(shape))
    return std::min<int64_t>(ceil_div(shape.rows, warp_row_threads / 32), multiprocessors());
  const RowPlan plan =
      shape.dtype == Dtype::f64 ? RowPlan{0, 0} : plan_row(shape, pack_of(shape.dtype), row_overhead);
  if (plan.packs_per_thread == 0) return ceil_div(shape.rows, rows_per_chunk);
  const int64_t at_once =
      blocks_at_once(resident_threads(plan.packs_per_thread, shape.sums_dx), plan.threads);
  return std::min<int64_t>(shape.rows, multiprocessors() * at_once);
}

void norm_backward(const NormShape& shape, const NormBackwardArgs& args, CUstream_st* stream) {
  with_device_type(shape.dtype, [&]<typename T>(T) {
    launch<T>(shape, args, stream);
    check_launch("norm_backward");
    add_partials<Accumulator<T>>({.sums = {args.dweight, args.dbias, args.dx_sum},
                                  .count = norm_backward_blocks(shape),
                                  .width = shape.width},
                                 stream);
  });
}

}  // namespace teratron::cuda
