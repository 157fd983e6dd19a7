// States of the chunked recurrence (launchers.h): a block has all channels of a head by 64 columns of the
// state, in f32 registers, a warp 16 channels; it goes from chunk to chunk with the next on its way.
// Bytes: a once for each 64 columns, b once a head; every state is written once.
#include "teratron/kernels/mamba/scan_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int columns = 64, stages = 2;

template <int P>
struct StatesTile {
  static constexpr int threads = 2 * P;  // 16 rows of the state a warp
  static constexpr int a_bytes = PaddedTile<P>::bytes(scan_chunk),
                       b_bytes = PaddedTile<columns>::bytes(scan_chunk);
  static constexpr int stage_bytes = a_bytes + b_bytes + ChunkTokens::bytes;
  static constexpr int shared_bytes = stages * stage_bytes;
};

template <typename T, int P>
struct StatesBlock {
  using Tile = StatesTile<P>;

  const ScanShape& shape;
  const ScanTokens& tokens;
  const ScanStates& args;
  const int column0 = blockIdx.x * columns, head = blockIdx.y, batch = blockIdx.z;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  unsigned char* const memory;

  __device__ int chunk_of(int step) const { return args.reversed ? shape.chunks - 1 - step : step; }
  __device__ unsigned char* stage(int step) const { return memory + step % stages * Tile::stage_bytes; }

  __device__ void copy(int step) const {
    if (step < shape.chunks) {
      const int chunk = chunk_of(step), token = chunk * scan_chunk, valid = shape.tokens - token;
      const SharedAddress to = shared_address(stage(step));
      const auto rows = [&](const TokenRows& x) {
        return static_cast<const T*>(x.data) + (token * int64_t{shape.batch} + batch) * x.stride;
      };
      const int group = head / (shape.heads / shape.groups);
      copy_tile<P, scan_chunk, Tile::threads>(PaddedTile<P>{to}, rows(args.a) + head * shape.head_dim,
                                              args.a.stride * shape.batch, valid, shape.head_dim);
      copy_tile<columns, scan_chunk, Tile::threads>(
          PaddedTile<columns>{to + Tile::a_bytes}, rows(args.b) + group * shape.state + column0,
          args.b.stride * shape.batch, valid, shape.state - column0);
      ChunkTokens::copy<Tile::threads>(to + Tile::a_bytes + Tile::b_bytes, tokens,
                                       ChunkPlace{shape, chunk, batch}, head);
    }
    cp_async_commit();
  }

  __device__ float* state_row(float* states, int r) const {
    return states + ((int64_t{batch} * shape.heads + head) * shape.head_dim + r) * shape.state + column0;
  }
  /// Calls f(values of a pair, row, column) for the pairs inside the state.
  template <typename F>
  __device__ void for_each_pair(ScanAccumulators<8>& state, F&& f) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half, column = 8 * n + 2 * (lane % 4);
        if (r < shape.head_dim && column0 + column < shape.state) f(&state[n][2 * half], r, column);
      }
    }
  }
  __device__ void write(ScanAccumulators<8>& state, int chunk) const {
    const int64_t at = (int64_t{batch} * shape.chunks + chunk) * shape.heads + head;
    T* const to = static_cast<T*>(args.states) + at * shape.head_dim * shape.state + column0;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half;
        const bool valid = r < shape.head_dim && column0 + 8 * n + store_column() < shape.state;
        store_row<T>(to + r * int64_t{shape.state} + 8 * n, valid, state[n], state[n + 1], half);
      }
    }
  }
  __device__ void add_chunk(ScanAccumulators<8>& state, const unsigned char* from) const {
    const SharedAddress address = shared_address(from);
    const PaddedTile<P> a_tile{address};
    const PaddedTile<columns> b_tile{address + Tile::a_bytes};
    const ChunkTokens chunk(from + Tile::a_bytes + Tile::b_bytes);
    const float carry = chunk.carry();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[n][i] *= carry;
    }
#pragma unroll
    for (int k = 0; k < scan_chunk; k += 16) {
      uint32_t a[4];
      a_tile.load_a_transposed(a, k, threadIdx.x / 32 * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = k + 8 * half + 2 * (lane % 4);
        float2 w = *reinterpret_cast<const float2*>((args.reversed ? chunk.start : chunk.end) + t);
        if (!args.reversed) {
          const float2 dt = *reinterpret_cast<const float2*>(chunk.dt + t);
          w = make_float2(w.x * dt.x, w.y * dt.y);
        }
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float2 two = widen_pair<T>(a[i]);
          a[i] = round_pair<T>(two.x * w.x, two.y * w.y);
        }
      }
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        uint32_t b[4];
        b_tile.load_b_rows(b, k, 8 * n);
        mma_pair<T>(state[n], state[n + 1], a, b);
      }
    }
  }

  __device__ void run() const {
    for (int s = 0; s < stages; ++s) {
      ChunkTokens::no_documents<Tile::threads>(memory + s * Tile::stage_bytes + Tile::a_bytes + Tile::b_bytes,
                                               tokens);
    }
    __syncthreads();
    for (int s = 0; s < stages - 1; ++s) copy(s);
    ScanAccumulators<8> state;
    clear<8>(state);
    if (args.initial != nullptr) {
      for_each_pair(state, [&](float* pair, int r, int column) {
        const float* const from = state_row(const_cast<float*>(args.initial), r) + column;
        pair[0] = from[0];
        pair[1] = from[1];
      });
    }
    for (int step = 0; step < shape.chunks; ++step) {
      cp_async_wait<stages - 2>();
      __syncthreads();
      copy(step + stages - 1);
      if (args.states != nullptr) write(state, chunk_of(step));
      add_chunk(state, stage(step));
    }
    if (args.last == nullptr) return;
    for_each_pair(state, [&](const float* pair, int r, int column) {
      *reinterpret_cast<float2*>(state_row(args.last, r) + column) = make_float2(pair[0], pair[1]);
    });
  }
};

template <typename T, int P>
__global__ void __launch_bounds__(StatesTile<P>::threads, P == 64   ? 4
                                                          : P == 80 ? 3
                                                                    : 2)
    scan_states_kernel(ScanShape shape, ScanTokens tokens, ScanStates args) {
  extern __shared__ __align__(16) unsigned char memory[];
  StatesBlock<T, P>{.shape = shape, .tokens = tokens, .args = args, .memory = memory}.run();
}

}  // namespace

void scan_states(const ScanShape& shape, const ScanTokens& tokens, const ScanStates& args,
                 CUstream_st* stream) {
  with_scan(shape, [&]<typename T, int P>(T, std::integral_constant<int, P>) {
    using Tile = StatesTile<P>;
    allow_scan_memory(scan_states_kernel<T, P>, Tile::shared_bytes);
    const dim3 grid(static_cast<unsigned>(ceil_div(shape.state, columns)), shape.heads, shape.batch);
    scan_states_kernel<T, P><<<grid, Tile::threads, Tile::shared_bytes, stream>>>(shape, tokens, args);
    check_launch("scan_states");
  });
}

}  // namespace teratron::cuda
