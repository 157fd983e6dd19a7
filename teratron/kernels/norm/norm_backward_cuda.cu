// Backward of LayerNorm and RMSNorm (norm.h), with g = dy gain and xhat = (h - mean) rstd:
//   dx = rstd (g - avg(g) - xhat avg(g xhat)) + dresidual; sums over rows of dy xhat, dy and dx
// A group, a block or (short rows) a warp, loops over rows; thread t has the 16-byte packs t, t + n, ... of
// each.
// Rows pass through shared memory, up to four in flight. Sums over rows stay in registers and become one
// workspace row per block, which a second kernel adds up.
// Other widths and f64: one block per row, then blocks of 32 columns for the sums.
// Bytes: dy, h and dresidual are read once and dx is written once. One H200: 0.85 to 1.13 of a copy.
#include "teratron/kernels/common/column_reduction.cuh"
#include "teratron/kernels/norm/launchers.h"
#include "teratron/kernels/norm/norm_device.cuh"

namespace teratron::cuda {
namespace {

constexpr int rows_per_chunk = 128;  // of the generic path, or more where the grid would be too high
constexpr int row_overhead = 1;      // instructions per row and warp, in packs (select_row_tiling)

/// Sums over rows that a kernel computes, each including those before it: of dy xhat, of dy (layer norms), of
/// dx.
enum Sums { sum_dweight, sum_dbias, sum_dx };

/// Threads per block of WarpRows: one block per SM, with registers for three sums of three packs per thread.
constexpr int warp_row_threads = 384;

/// Resident threads per SM, by register use.
constexpr int resident_threads(int packs_per_thread, bool sums_dx) {
  if (packs_per_thread == warp_packs) return warp_row_threads;
  if (packs_per_thread == 1) return sums_dx ? 896 : 1024;
  return packs_per_thread == 2 && sums_dx ? 384 : 512;
}
/// Threads per block.
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

/// dy and xhat of a row, pack by pack: in registers if they fit, else re-read.
template <typename Pipeline, int PER>
struct RowGradient {
  static constexpr int N = Pipeline::N;
  static constexpr bool in_registers = PER <= 2;
  float dy[in_registers ? PER : 1][N], xhat[in_registers ? PER : 1][N];

  __device__ void read(const Pipeline& pipeline, int stage, const RowStatistics& of, int k) {
    float(&x)[N] = xhat[in_registers ? k : 0];
    pipeline.read(stage, dy_part, k, dy[in_registers ? k : 0]);
    pipeline.read(stage, sum_part, k, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = (x[i] - of.mean) * of.rstd;
  }
};

/// A thread's weights and its sums over rows.
template <typename Pipeline, int PER, Sums SUMS>
struct RowSums {
  using T = typename Pipeline::Element;
  static constexpr int N = Pipeline::N;
  float gain[PER][N], dweight[PER][N] = {};
  float dbias[SUMS >= sum_dbias ? PER : 1][N] = {}, dx_sum[SUMS >= sum_dx ? PER : 1][N] = {};

  __device__ RowSums(const NormShape& shape, const void* weight, const Pipeline& pipeline) {
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (pipeline.has(k)) load_gain<N, T>(shape, weight, pipeline.column(k), gain[k]);
    }
  }
  /// Adds pack k; adds g xhat and, for layer norms, g to `row_sum`, with g = dy * gain.
  __device__ void add(int k, const float (&dy)[N], const float (&xhat)[N], float (&row_sum)[2]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float product = dy[i] * xhat[i];
      dweight[k][i] += product;
      row_sum[0] += product * gain[k][i];
      if constexpr (SUMS >= sum_dbias) {
        dbias[k][i] += dy[i];
        row_sum[1] += dy[i] * gain[k][i];
      }
    }
  }
  __device__ void add_dx(int k, const float (&dx)[N]) {
    if constexpr (SUMS >= sum_dx) {
#pragma unroll
      for (int i = 0; i < N; ++i) dx_sum[k][i] += dx[i];
    }
  }
  /// Writes the block's workspace row, for BlockRows.
  __device__ void store(const NormBackwardArgs& args, const Pipeline& pipeline) const {
    each(
        [&](int which, int k, const float(&sum)[N]) {
          store_values(workspace_of(args, which) + pipeline.offset(blockIdx.x, k), sum);
        },
        pipeline);
  }
  /// Adds up the warps' sums first, for WarpRows. `shared`: f32 for each sum of each warp.
  __device__ void store_warps(const NormBackwardArgs& args, const Pipeline& pipeline, int width,
                              float* shared) const {
    constexpr int arrays = SUMS + 1;
    each(
        [&](int which, int k, const float(&sum)[N]) {
          float* const to = shared + (Pipeline::Group::group() * arrays + which) * width + pipeline.column(k);
#pragma unroll
          for (int i = 0; i < N; i += 4)
            reinterpret_cast<float4&>(to[i]) = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
        },
        pipeline);
    __syncthreads();
    for (int i = threadIdx.x; i < arrays * width; i += blockDim.x) {
      float sum = 0;
      for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += shared[warp * arrays * width + i];
      workspace_of(args, i / width)[blockIdx.x * int64_t{width} + i % width] = sum;
    }
  }

 private:
  __device__ static float* workspace_of(const NormBackwardArgs& args, int which) {
    return static_cast<float*>(which == sum_dweight ? args.dweight.workspace
                               : which == sum_dbias ? args.dbias.workspace
                                                    : args.dx_sum.workspace);
  }
  template <typename F>
  __device__ void each(F&& f, const Pipeline& pipeline) const {
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipeline.has(k)) continue;
      f(sum_dweight, k, dweight[k]);
      if constexpr (SUMS >= sum_dbias) f(sum_dbias, k, dbias[k]);
      if constexpr (SUMS >= sum_dx) f(sum_dx, k, dx_sum[k]);
    }
  }
};

/// Groups loop over rows, with STAGES rows in flight:
///   dx = rstd (g - avg(g) - xhat avg(g xhat)) + dresidual
template <typename T, int PER, Sums SUMS, int STAGES, typename Group>
__global__ void __launch_bounds__(max_threads(PER, SUMS == sum_dx),
                                  resident_threads(PER, SUMS == sum_dx) / max_threads(PER, SUMS == sum_dx))
    backward_rows(NormShape shape, NormBackwardArgs args) {
  constexpr bool RMS = SUMS == sum_dweight;
  using Pipeline = RowPipeline<T, parts, PER, STAGES, Group>;
  constexpr int N = Pipeline::N;
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ float shared[2][row_sums];
  const Pipeline pipeline(shape, {args.dy, args.sum, args.dresidual}, bytes);
  RowSums<Pipeline, PER, SUMS> over_rows(shape, args.weight, pipeline);
  pipeline.start();
  RowStatistics next = RowStatistics::read<RMS>(shape, args, Group::first_row());
  const float inverse_width = 1.0f / static_cast<float>(shape.width);
  for (RowCursor<Group> cursor; cursor.row < shape.rows; cursor.next(STAGES)) {
    const RowStatistics now = next;
    next = RowStatistics::read<RMS>(shape, args, cursor.row + Group::row_step());
    pipeline.advance(cursor);
    RowGradient<Pipeline, PER> row;
    float sums[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipeline.has(k)) continue;
      row.read(pipeline, cursor.stage, now, k);
      over_rows.add(k, row.dy[row.in_registers ? k : 0], row.xhat[row.in_registers ? k : 0], sums);
    }
    Group::sum(sums, shared[cursor.stage % 2]);
    const float xhat_factor = -now.rstd * sums[0] * inverse_width,
                constant = -now.rstd * sums[1] * inverse_width;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if (!pipeline.has(k)) continue;
      if constexpr (!row.in_registers) row.read(pipeline, cursor.stage, now, k);
      float dx[N] = {};
      if (args.dresidual != nullptr) pipeline.read(cursor.stage, residual_part, k, dx);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if constexpr (!RMS) dx[i] += constant;
        dx[i] += row.xhat[row.in_registers ? k : 0][i] * xhat_factor;
        dx[i] += row.dy[row.in_registers ? k : 0][i] * (over_rows.gain[k][i] * now.rstd);
      }
      over_rows.add_dx(k, dx);
      store<N>(static_cast<T*>(args.dx) + pipeline.offset(cursor.row, k), round_to_pack<T>(dx));
    }
  }
  if constexpr (std::is_same_v<Group, WarpRows>) {
    __syncthreads();  // all warps have read their rows
    over_rows.store_warps(args, pipeline, static_cast<int>(shape.width), reinterpret_cast<float*>(bytes));
  } else {
    over_rows.store(args, pipeline);
  }
}

/// False if the device has too little shared memory for STAGES rows.
template <typename T, int PER, Sums SUMS, int STAGES, typename Group = BlockRows>
bool launch_rows(const NormShape& shape, const NormBackwardArgs& args, int threads, cudaStream_t stream) {
  const int bytes = RowPipeline<T, parts, PER, STAGES, Group>::bytes(threads);
  if (bytes > shared_memory_limit() - row_sums_bytes) return false;
  const auto kernel = backward_rows<T, PER, SUMS, STAGES, Group>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<static_cast<unsigned>(norm_backward_workspace_rows(shape)), threads, bytes, stream>>>(shape, args);
  return true;
}

constexpr int stages = 4;

/// If the device has enough shared memory.
bool use_warp_rows(const NormShape& shape) {
  using Pipeline = RowPipeline<__nv_bfloat16, parts, warp_packs, stages, WarpRows>;
  return prefers_warp_rows(shape) &&
         Pipeline::bytes(warp_row_threads) <= shared_memory_limit() - row_sums_bytes;
}

/// False if this path does not support the shape.
template <typename T, Sums SUMS>
bool launch_rows(const NormShape& shape, const NormBackwardArgs& args, cudaStream_t stream) {
  if (!aligned(args.dy, args.dresidual, args.sum, args.weight, args.dx)) return false;
  if constexpr (!std::is_same_v<T, float>) {
    if (use_warp_rows(shape))
      return launch_rows<T, warp_packs, SUMS, stages, WarpRows>(shape, args, warp_row_threads, stream);
  }
  const RowTiling tiling = select_row_tiling(shape, pack_size<T>, row_overhead);
  if (tiling.packs_per_thread == 1)
    return launch_rows<T, 1, SUMS, stages>(shape, args, tiling.threads, stream);
  if (tiling.packs_per_thread == 2)
    return launch_rows<T, 2, SUMS, stages>(shape, args, tiling.threads, stream);
  if constexpr (SUMS < sum_dx) {
    return tiling.packs_per_thread == 4 && launch_rows<T, 4, SUMS, 2>(shape, args, tiling.threads, stream);
  }
  return false;
}

/// dx for any width, alignment and dtype: one block per row.
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
    load_gain<1, T>(shape, args.weight, c, gain);
    const A g = widen(dy[c]) * gain[0];
    sums[0] += g;
    sums[1] += g * (widen(h[c]) - mean) * rstd;
  }
  block_sum(sums, shared);
  const A mean_g = shape.rms ? A(0) : sums[0] / static_cast<A>(shape.width);
  const A mean_gx = sums[1] / static_cast<A>(shape.width);
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A gain[1];
    load_gain<1, T>(shape, args.weight, c, gain);
    A d = rstd * (widen(dy[c]) * gain[0] - mean_g - (widen(h[c]) - mean) * rstd * mean_gx);
    if (args.dresidual != nullptr) d += widen(static_cast<const T*>(args.dresidual)[start + c]);
    static_cast<T*>(args.dx)[start + c] = round_to<T>(d);
  }
}

/// Sums for any width, after backward_any: a block sums its share of rows over 32 columns. Block (32, 8).
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
  void* const workspaces[] = {args.dweight.workspace, args.dbias.workspace, args.dx_sum.workspace};
  A* const out = static_cast<A*>(workspaces[threadIdx.y]);
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
  const unsigned blocks = static_cast<unsigned>(norm_backward_workspace_rows(shape));
  if constexpr (!std::is_same_v<T, double>) {
    // In this path layer norms always compute dbias, and RMS norms never.
    const bool has_bias = args.dbias.workspace != nullptr;
    if (shape.rms && !has_bias && launch_rows<T, sum_dweight>(shape, args, stream)) return;
    if (shape.sums_dx) {
      if (launch_rows<T, sum_dx>(shape, args, stream)) return;
    } else if (!shape.rms && has_bias && launch_rows<T, sum_dbias>(shape, args, stream)) {
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
  if (use_warp_rows(shape)) return true;
  const auto [threads, packs] = select_row_tiling(shape, pack_of(shape.dtype), row_overhead);
  return (packs == 1 || packs == 2) && threads <= max_threads(packs, true);
}

int64_t norm_backward_workspace_rows(const NormShape& shape) {
  if (use_warp_rows(shape)) return std::min<int64_t>(ceil_div(shape.rows, warp_row_threads / 32), sm_count());
  const RowTiling tiling = shape.dtype == Dtype::f64
                               ? RowTiling{0, 0}
                               : select_row_tiling(shape, pack_of(shape.dtype), row_overhead);
  if (tiling.packs_per_thread == 0) return std::min(ceil_div(shape.rows, rows_per_chunk), max_grid_y);
  const int64_t per_sm =
      resident_blocks(resident_threads(tiling.packs_per_thread, shape.sums_dx), tiling.threads);
  return std::min<int64_t>(shape.rows, sm_count() * per_sm);
}

void norm_backward(const NormShape& shape, const NormBackwardArgs& args, CUstream_st* stream) {
  with_device_type(shape.dtype, [&]<typename T>(T) {
    launch<T>(shape, args, stream);
    check_launch("norm_backward");
    finalize_column_sums<Accumulator<T>>({.sums = {args.dweight, args.dbias, args.dx_sum},
                                          .rows = norm_backward_workspace_rows(shape),
                                          .width = shape.width},
                                         stream);
  });
}

}  // namespace teratron::cuda
