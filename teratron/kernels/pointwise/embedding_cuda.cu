// Embeddings (embedding.h): x[r] += table[id[r]]; gradient: sum[id] += sum over rows of that id of dy. The
// former is pointwise: a thread has a 16-byte pack of columns, four rows in flight. The gradient takes rows
// sorted by id: a block has 32 of them and a slice of the columns, and adds up runs of one id in registers.
// A run within the block is added to the table; one that crosses its bounds leaves partial sums, which the
// block where it begins collects in a second kernel. So no atomics are needed, and the order of additions
// is fixed.
// Bytes: dy is read once; a row of the sum is read and written per run.
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/tiling.cuh"
#include "teratron/kernels/pointwise/launchers.h"

namespace teratron::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(256) embedding_add_kernel(EmbeddingAddArgs args) {
  using In = RowPacks<T, N, 2>;
  const int64_t column = tile_column<N>();
  if (column >= args.width) return;
  T* const x = static_cast<T*>(args.x) + column;
  const T* const table = static_cast<const T*>(args.table) + column;
  for_each_row<4, In>(
      args.rows,
      [&](int64_t row, In& in) {
        in.pack[0] = load<N>(x + row * args.width);
        in.pack[1] = load<N>(table + args.ids[row / args.rows_per_id] * args.width);
      },
      [&](int64_t row, In& in) {
        Accumulator<T> sum[N], more[N];
        widen(in.pack[0], sum);
        widen(in.pack[1], more);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += more[i];
        store<N>(x + row * args.width, round_to_pack<T>(sum));
      });
}

template <typename T, int N>
void launch(const EmbeddingAddArgs& args, cudaStream_t stream) {
  const Tiling t = tile_rows(ceil_div(args.width, N), args.rows);
  embedding_add_kernel<T, N><<<t.grid, t.block, 0, stream>>>(args);
  check_launch("embedding_add");
}

constexpr int chunk_rows = 32;
constexpr int threads = 128;

/// A chunk of the sorted rows. A run of equal ids inside it is added to its row of the table directly; a run
/// that crosses its boundaries leaves a partial sum, which the chunk where the run begins collects.
struct Chunk {
  const EmbeddingGradArgs& args;
  int64_t first, end;

  __device__ Chunk(const EmbeddingGradArgs& args, int64_t index)
      : args(args), first(index * chunk_rows), end(min(args.rows, first + chunk_rows)) {}
  __device__ bool begins_before(int64_t id) const {
    return args.ids[first] == id && first > 0 && args.ids[first - 1] == id;
  }
  __device__ bool continues_after(int64_t id) const { return end < args.rows && args.ids[end] == id; }
};

template <typename T, int N>
struct Columns {
  using A = Accumulator<T>;
  const EmbeddingGradArgs& args;
  int64_t column;

  /// Partial sum of the run that began before the chunk, or of the one that begins in it and continues.
  __device__ A* partial(int64_t chunk, bool begins_here) const {
    return static_cast<A*>(args.workspace) + (2 * chunk + (begins_here ? 1 : 0)) * args.width + column;
  }
  __device__ void add_to_table(int64_t id, const A (&x)[N]) const {
    A* const row = static_cast<A*>(args.sum) + id * args.width + column;
#pragma unroll
    for (int i = 0; i < N; ++i) row[i] += x[i];
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(threads) sum_runs_kernel(EmbeddingGradArgs args) {
  using A = Accumulator<T>;
  constexpr int R = 4;  // loads in flight
  __shared__ int64_t ids[chunk_rows], order[chunk_rows];
  const Chunk chunk(args, blockIdx.x);
  const int count = static_cast<int>(chunk.end - chunk.first);
  if (static_cast<int>(threadIdx.x) < count) {
    ids[threadIdx.x] = args.ids[chunk.first + threadIdx.x];
    order[threadIdx.x] = args.order[chunk.first + threadIdx.x];
  }
  __syncthreads();
  const Columns<T, N> columns{args, (blockIdx.y * int64_t{threads} + threadIdx.x) * N};
  if (columns.column >= args.width) return;
  A sum[N] = {};
  for (int batch = 0; batch < count; batch += R) {
    Pack<T, N> packs[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (batch + r >= count) continue;
      packs[r] = load<N>(static_cast<const T*>(args.dy) + order[batch + r] * args.width + columns.column);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int place = batch + r;
      if (place >= count) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += widen(packs[r].v[i]);
      const int64_t id = ids[place];
      if (place + 1 < count && ids[place + 1] == id) continue;
      const bool before = chunk.begins_before(id), after = place + 1 == count && chunk.continues_after(id);
      if (before || after) {
        A* const to = columns.partial(blockIdx.x, !before);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = sum[i];
      } else {
        columns.add_to_table(id, sum);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = 0;
    }
  }
}

/// Adds up the run that begins in this block's chunk and continues, if any.
template <typename T, int N>
__global__ void __launch_bounds__(threads) collect_runs_kernel(EmbeddingGradArgs args) {
  using A = Accumulator<T>;
  const Columns<T, N> columns{args, (blockIdx.y * int64_t{threads} + threadIdx.x) * N};
  const Chunk own(args, blockIdx.x);
  const int64_t id = args.ids[own.end - 1];
  if (columns.column >= args.width || own.begins_before(id) || !own.continues_after(id)) return;
  A sum[N];
  const A* const begin = columns.partial(blockIdx.x, true);
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = begin[i];
  for (int64_t index = blockIdx.x + int64_t{1};; ++index) {
    const A* const more = columns.partial(index, false);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += more[i];
    const Chunk chunk(args, index);
    if (args.ids[chunk.end - 1] != id || !chunk.continues_after(id)) break;
  }
  columns.add_to_table(id, sum);
}

template <typename T, int N>
void launch(const EmbeddingGradArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, chunk_rows)),
                  static_cast<unsigned>(ceil_div(args.width, threads * N)));
  sum_runs_kernel<T, N><<<grid, threads, 0, stream>>>(args);
  check_launch("embedding_grad_add");
  collect_runs_kernel<T, N><<<grid, threads, 0, stream>>>(args);
  check_launch("embedding_grad_add");
}

}  // namespace

void embedding_add(const EmbeddingAddArgs& args, CUstream_st* stream) {
  with_pack(args.dtype, args.width, aligned(args.x, args.table),
            [&]<typename T>(T, auto pack) { launch<T, pack.value>(args, stream); });
}

int64_t embedding_grad_workspace_rows(int64_t rows) {
  return 2 * ceil_div(rows, chunk_rows);
}

void embedding_grad_add(const EmbeddingGradArgs& args, CUstream_st* stream) {
  with_pack(args.dtype, args.width, aligned(args.dy),
            [&]<typename T>(T, auto pack) { launch<T, pack.value>(args, stream); });
}

}  // namespace teratron::cuda
