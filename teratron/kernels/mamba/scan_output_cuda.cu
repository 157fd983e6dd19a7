// Outputs of the chunked recurrence (launchers.h) from the states before each chunk. A block has a chunk and
// up to eight heads of a group, whose scores C B^T it computes once; a warp has 16 tokens:
//   y_t = sum over s of (C_t . B_s) decay(s, t) dt_s x_s + decay(start, t) S C_t + D x_t
// Decays to a token t of the warp's tile from what is before the tile are products: to the tile, and within
// it.
// Bytes: x and the states once, B and C once for eight heads; y is written once.
#include "teratron/kernels/mamba/scan_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = 128, heads_per_block = 8, N = max_scan_state;

template <int P>
struct OutputTile {
  static constexpr int bc_bytes = PaddedTile<N>::bytes(scan_chunk);
  static constexpr int x_bytes = PaddedTile<P>::bytes(scan_chunk), state_bytes = PaddedTile<N>::bytes(P);
  static constexpr int stage_bytes = x_bytes + state_bytes + ChunkTokens::bytes;
  // C, and two stages of heads; B is in the second until the scores are computed.
  static constexpr int shared_bytes = bc_bytes + 2 * stage_bytes;
  static_assert(bc_bytes <= x_bytes + state_bytes);
};

template <typename T, int P>
struct OutputBlock {
  using Tile = OutputTile<P>;
  static constexpr int columns = P / 8;  // accumulators of a warp

  const ScanShape& shape;
  const ScanTokens& tokens;
  const ScanRows& rows;
  T* const y;
  unsigned char* const memory;
  const ChunkPlace place{shape, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.z)};
  const int lane = threadIdx.x % 32, g = lane / 4, t2 = lane % 4 * 2, tile_row = threadIdx.x / 32 * 16;
  const int shared_heads = shape.heads / shape.groups;
  const int parts = (shared_heads + heads_per_block - 1) / heads_per_block;
  const int group = blockIdx.y / parts;
  const int head0 = group * shared_heads + blockIdx.y % parts * heads_per_block;
  const int end = min(head0 + heads_per_block, (group + 1) * shared_heads);

  __device__ unsigned char* stage(int index) const {
    return memory + Tile::bc_bytes + index % 2 * Tile::stage_bytes;
  }
  template <int D>
  __device__ void copy_columns(const PaddedTile<D>& tile, int column, int count) const {
    copy_tile<D, scan_chunk, threads>(
        tile, static_cast<const T*>(rows.xbc.data) + place.row_of(0) * rows.xbc.stride + column,
        rows.xbc.stride * shape.batch, place.valid(), count);
  }
  __device__ PaddedTile<N> c_tile() const { return {shared_address(memory)}; }
  __device__ PaddedTile<N> b_tile() const { return {shared_address(stage(1))}; }
  __device__ void copy_bc() const {
    const int first = shape.heads * shape.head_dim + group * shape.state;
    copy_columns(b_tile(), first, shape.state);
    copy_columns(c_tile(), first + shape.groups * shape.state, shape.state);
  }
  __device__ void copy_head(int head) const {
    if (head < end) {
      const SharedAddress to = shared_address(stage(head - head0));
      copy_columns(PaddedTile<P>{to}, head * shape.head_dim, shape.head_dim);
      copy_tile<N, P, threads>(PaddedTile<N>{to + Tile::x_bytes},
                               static_cast<const T*>(rows.states) + place.state(head), shape.state,
                               shape.head_dim, shape.state);
      ChunkTokens::copy<threads>(to + Tile::x_bytes + Tile::state_bytes, tokens, place, head);
    }
    cp_async_commit();
  }

  /// C of this warp's tokens, and their scores with all tokens before.
  __device__ void score(uint32_t (&c)[N / 16][4], ScanAccumulators<8>& scores) const {
    clear<8>(scores);
#pragma unroll
    for (int k = 0; k < N / 16; ++k) {
      c_tile().load_a(c[k], tile_row, 16 * k);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        if (8 * n > tile_row) break;
        uint32_t b[4];
        b_tile().load_b(b, 8 * n, 16 * k);
        mma_pair<T>(scores[n], scores[n + 1], c[k], b);
      }
    }
  }

  /// out += a x, of the 16 tokens from `row` on.
  __device__ void add_tokens(const uint32_t (&a)[4], const PaddedTile<P>& x, int row,
                             ScanAccumulators<columns>& out) const {
#pragma unroll
    for (int n = 0; n < columns; n += 2) {
      uint32_t b[4];
      x.load_b_rows(b, row, 8 * n);
      mma_pair<T>(out[n], out[n + 1], a, b);
    }
  }
  /// What is before this warp's tile.
  __device__ void add_before(const ScanAccumulators<8>& scores, const ChunkTokens& own,
                             const PaddedTile<P>& x, ScanAccumulators<columns>& out) const {
    const int last = tile_row - 1, start = own.first[last];
    const float gamma = own.gamma[last], carry = own.start[last];
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= carry;
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (16 * k >= tile_row) break;
      uint32_t a[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int s = 16 * k + 8 * half + t2;
        const float2 gammas = *reinterpret_cast<const float2*>(own.gamma + s);
        const float2 dt = *reinterpret_cast<const float2*>(own.dt + s);
        const float low = s >= start ? fast_exp(gamma - gammas.x) * dt.x : 0.0f;
        const float high = s + 1 >= start ? fast_exp(gamma - gammas.y) * dt.y : 0.0f;
        const auto& pair = scores[2 * k + half];
        a[2 * half] = round_pair<T>(pair[0] * low, pair[1] * high);
        a[2 * half + 1] = round_pair<T>(pair[2] * low, pair[3] * high);
      }
      add_tokens(a, x, 16 * k, out);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = tile_row + g + 8 * half;
      const float decay = own.first[t] < tile_row ? fast_exp(own.gamma[t] - gamma) : 0.0f;
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        out[n][2 * half] *= decay;
        out[n][2 * half + 1] *= decay;
      }
    }
  }
  /// The tile's tokens with each other.
  __device__ void add_within(const ScanAccumulators<8>& scores, const ChunkTokens& own,
                             const PaddedTile<P>& x, ScanAccumulators<columns>& out) const {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      if (16 * tile != tile_row) continue;
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = tile_row + g + i % 2 * 8, s = tile_row + i / 2 * 8 + t2;
        const float* const pair = &scores[2 * tile + i / 2][i % 2 * 2];
        a[i] = round_pair<T>(pair[0] * own.between(s, t) * own.dt[s],
                             pair[1] * own.between(s + 1, t) * own.dt[s + 1]);
      }
      add_tokens(a, x, tile_row, out);
    }
  }
  __device__ void compute(int head, const uint32_t (&c)[N / 16][4], const ScanAccumulators<8>& scores) const {
    const unsigned char* const from = stage(head - head0);
    const PaddedTile<P> x{shared_address(from)};
    const PaddedTile<N> state{x.address + Tile::x_bytes};
    const ChunkTokens own(from + Tile::x_bytes + Tile::state_bytes);
    ScanAccumulators<columns> out;
    clear<columns>(out);
#pragma unroll
    for (int k = 0; k < N / 16; ++k) {
#pragma unroll
      for (int n = 0; n < columns; n += 2) {
        uint32_t b[4];
        state.load_b(b, 8 * n, 16 * k);
        mma_pair<T>(out[n], out[n + 1], c[k], b);
      }
    }
    if (tile_row > 0) {
      add_before(scores, own, x, out);
    } else {
      scale_rows(out, own.start[g], own.start[g + 8]);
    }
    add_within(scores, own, x, out);
    write(head, x, out);
  }
  __device__ void scale_rows(ScanAccumulators<columns>& out, float low, float high) const {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      out[n][0] *= low;
      out[n][1] *= low;
      out[n][2] *= high;
      out[n][3] *= high;
    }
  }
  __device__ void write(int head, const PaddedTile<P>& x, ScanAccumulators<columns>& out) const {
    const float D = rows.D[head];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = tile_row + g + 8 * half;
      T* const to = y + (place.row_of(token) * shape.heads + head) * shape.head_dim;
#pragma unroll
      for (int n = 0; n < columns; n += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 own = x.template pair<T>(token, 8 * (n + i) + t2);
          out[n + i][2 * half] += D * own.x;
          out[n + i][2 * half + 1] += D * own.y;
        }
        const bool inside = token < place.valid() && 8 * n + store_column() < shape.head_dim;
        store_row<T>(to + 8 * n, inside, out[n], out[n + 1], half);
      }
    }
  }

  __device__ void run() const {
    for (int s = 0; s < 2; ++s)
      ChunkTokens::no_documents<threads>(stage(s) + Tile::x_bytes + Tile::state_bytes, tokens);
    copy_bc();
    copy_head(head0);
    cp_async_wait<0>();
    __syncthreads();
    uint32_t c[N / 16][4];
    ScanAccumulators<8> scores;
    score(c, scores);
    for (int head = head0; head < end; ++head) {
      cp_async_wait<0>();
      __syncthreads();
      copy_head(head + 1);
      compute(head, c, scores);
    }
  }
};

template <typename T, int P>
__global__ void __launch_bounds__(threads, P <= 80 ? 3 : 2)
    scan_output_kernel(ScanShape shape, ScanTokens tokens, ScanRows rows, T* y) {
  extern __shared__ __align__(16) unsigned char memory[];
  OutputBlock<T, P>{.shape = shape, .tokens = tokens, .rows = rows, .y = y, .memory = memory}.run();
}

}  // namespace

bool scan_supported() {
  return compute_capability_major() >= 8;
}

void scan_output(const ScanShape& shape, const ScanTokens& tokens, const ScanRows& rows, void* y,
                 CUstream_st* stream) {
  with_scan(shape, [&]<typename T, int P>(T, std::integral_constant<int, P>) {
    using Tile = OutputTile<P>;
    allow_scan_memory(scan_output_kernel<T, P>, Tile::shared_bytes);
    const int64_t parts = ceil_div(shape.heads / shape.groups, heads_per_block);
    const dim3 grid(shape.chunks, static_cast<unsigned>(shape.groups * parts), shape.batch);
    scan_output_kernel<T, P>
        <<<grid, threads, Tile::shared_bytes, stream>>>(shape, tokens, rows, static_cast<T*>(y));
    check_launch("scan_output");
  });
}

}  // namespace teratron::cuda
