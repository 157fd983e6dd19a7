#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/tiling.cuh"
#include "teratron/kernels/pointwise/embedding_cuda.h"

namespace teratron::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(256) add_looked_up_kernel(AddLookedUpArgs args) {
  using In = Inputs<T, N, 2>;
  const int64_t column = tile_column<N>();
  if (column >= args.width) return;
  T* const x = static_cast<T*>(args.x) + column;
  const T* const table = static_cast<const T*>(args.table) + column;
  walk_rows<4, In>(
      args.rows,
      [&](int64_t row, In& in) {
        in.pack[0] = load<N>(x + row * args.width);
        in.pack[1] = load<N>(table + args.ids[row / args.rows_of_id] * args.width);
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
void launch(const AddLookedUpArgs& args, cudaStream_t stream) {
  const Tiling t = tile_rows(ceil_div(args.width, N), args.rows);
  add_looked_up_kernel<T, N><<<t.grid, t.block, 0, stream>>>(args);
  check_launch("add_looked_up");
}

constexpr int chunk_rows = 32;
constexpr int threads = 128;

/// Where the runs of equal ids lie that meet a chunk of the sorted rows. A run within the chunk is added to its row of
/// the table at once; one that goes beyond leaves a partial sum, which the chunk where it begins collects.
struct Chunk {
  const AddRowsArgs& args;
  int64_t first, end;

  __device__ Chunk(const AddRowsArgs& args, int64_t index)
      : args(args), first(index * chunk_rows), end(min(args.rows, first + chunk_rows)) {}
  __device__ bool begins_before(int64_t id) const {
    return args.ids[first] == id && first > 0 && args.ids[first - 1] == id;
  }
  __device__ bool goes_on(int64_t id) const { return end < args.rows && args.ids[end] == id; }
};

template <typename T, int N>
struct Columns {
  using A = Accumulator<T>;
  const AddRowsArgs& args;
  int64_t column;

  /// Of the run that comes from before the chunk, or of the one that begins in it and goes on.
  __device__ A* partial(int64_t chunk, bool begins_here) const {
    return static_cast<A*>(args.partial) + (2 * chunk + (begins_here ? 1 : 0)) * args.width + column;
  }
  __device__ void add_to_table(int64_t id, const A (&x)[N]) const {
    A* const row = static_cast<A*>(args.sum) + id * args.width + column;
#pragma unroll
    for (int i = 0; i < N; ++i) row[i] += x[i];
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(threads) add_runs(AddRowsArgs args) {
  using A = Accumulator<T>;
  constexpr int R = 4;  // rows on their way
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
      const bool before = chunk.begins_before(id), after = place + 1 == count && chunk.goes_on(id);
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

/// Adds up the run that begins in this block's chunk and goes on, if there is one.
template <typename T, int N>
__global__ void __launch_bounds__(threads) collect_runs(AddRowsArgs args) {
  using A = Accumulator<T>;
  const Columns<T, N> columns{args, (blockIdx.y * int64_t{threads} + threadIdx.x) * N};
  const Chunk own(args, blockIdx.x);
  const int64_t id = args.ids[own.end - 1];
  if (columns.column >= args.width || own.begins_before(id) || !own.goes_on(id)) return;
  A sum[N];
  const A* const begin = columns.partial(blockIdx.x, true);
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = begin[i];
  for (int64_t index = blockIdx.x + int64_t{1};; ++index) {
    const A* const more = columns.partial(index, false);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += more[i];
    const Chunk chunk(args, index);
    if (args.ids[chunk.end - 1] != id || !chunk.goes_on(id)) break;
  }
  columns.add_to_table(id, sum);
}

template <typename T, int N>
void launch(const AddRowsArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, chunk_rows)),
                  static_cast<unsigned>(ceil_div(args.width, threads * N)));
  add_runs<T, N><<<grid, threads, 0, stream>>>(args);
  check_launch("add_rows");
  collect_runs<T, N><<<grid, threads, 0, stream>>>(args);
  check_launch("add_rows");
}

}  // namespace

void add_looked_up(const AddLookedUpArgs& args, CUstream_st* stream) {
  with_device_type(args.dtype, [&]<typename T>(T) {
    if (args.width % pack_size<T> == 0 && aligned(args.x, args.table)) {
      launch<T, pack_size<T>>(args, stream);
    } else {
      launch<T, 1>(args, stream);
    }
  });
}

int64_t add_rows_partials(int64_t rows) {
  return 2 * ceil_div(rows, chunk_rows);
}

void add_rows(const AddRowsArgs& args, CUstream_st* stream) {
  with_device_type(args.dtype, [&]<typename T>(T) {
    if (args.width % pack_size<T> == 0 && aligned(args.dy)) {
      launch<T, pack_size<T>>(args, stream);
    } else {
      launch<T, 1>(args, stream);
    }
  });
}

}  // namespace teratron::cuda
