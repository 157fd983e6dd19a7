// Backward of the chunked recurrence (launchers.h), from the states before the chunks and the gradients dS of
// those after them. A block has a chunk and up to eight heads of a group, whose scores C B^T it computes once.
// With m(s, t) = (C_t . B_s) decay(s, t), u = dt x, decays to_t from the chunk's start and from_s to its end:
//   du_s = sum over t of m(s, t) dy_t + from_s dS B_s
//   dB_s = sum over heads of (sum over t of dscore(s, t) C_t + from_s dS^T u_s)
//   dC_t = sum over heads of (sum over s of dscore(s, t) B_s + to_t S^T dy_t)
//   dscore(s, t) = dt_s (x_s . dy_t) decay(s, t)
//   dgamma_t = sum over s of E(s, t) - sum over t' of E(t, t') + to_t dy_t . S C_t - u_t . from_t dS B_t
// with E(s, t) = dscore(s, t) (C_t . B_s), exactly as much in one sum as in the other
//   dg_t = sum over t' >= t of dgamma_t' + dS . (the state after the chunk)
// Bytes: x, dy, the states and dS once, B and C once for eight heads; dx, and dB and dC for eight heads, once.
#include "teratron/kernels/mamba/scan_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int warps = 16, threads = 32 * warps, heads_per_block = 8, N = max_scan_state;

// Sums of one head, each partial sum by the warp that has it.
struct HeadSums {
  float received[4][scan_chunk];  // E over s, by tile of s
  float sent[4][scan_chunk];      // E over t, by tile of t
  float read[4][scan_chunk];      // dy_t . S C_t decayed, by columns of the state
  float written[4][scan_chunk];   // u_s . dS B_s decayed, by channels
  float dux[4][scan_chunk];       // du_s . x_s, by channels
  float kept[warps], dyx[warps];  // dS . S, dy . x
};

template <int P>
struct BackwardTile {
  static constexpr int stages = P <= 80 ? 2 : 1;
  static constexpr int bc_bytes = PaddedTile<N>::bytes(scan_chunk),
                       scores_bytes = PaddedTile<scan_chunk>::bytes(scan_chunk);
  static constexpr int x_bytes = PaddedTile<P>::bytes(scan_chunk), state_bytes = PaddedTile<N>::bytes(P);
  static constexpr int stage_bytes = 2 * x_bytes + 2 * state_bytes + ChunkTokens::bytes;
  static constexpr int sums_at = 2 * bc_bytes + scores_bytes;
  static constexpr int stages_at = sums_at + 2 * static_cast<int>(sizeof(HeadSums));
  static constexpr int shared_bytes = stages_at + stages * stage_bytes;
};

// One head's tiles.
template <int P>
struct HeadTiles {
  using Tile = BackwardTile<P>;
  PaddedTile<P> x, dy;
  PaddedTile<N> state, dstate;
  ChunkTokens tokens;

  __device__ explicit HeadTiles(const unsigned char* memory)
      : x{shared_address(memory)},
        dy{x.address + Tile::x_bytes},
        state{dy.address + Tile::x_bytes},
        dstate{state.address + Tile::state_bytes},
        tokens(memory + 2 * Tile::x_bytes + 2 * Tile::state_bytes) {}
};

template <typename T, int P>
struct BackwardBlock {
  using Tile = BackwardTile<P>;

  const ScanShape& shape;
  const ScanTokens& tokens;
  const ScanRows& rows;
  const ScanGradient& gradient;
  unsigned char* const memory;
  const int chunk = blockIdx.x, batch = blockIdx.z;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t2 = lane % 4 * 2;
  const int tile_row = warp % 4 * 16,
            side = warp / 4;  // of this warp's products: 16 rows, a quarter of columns
  const int shared_heads = shape.heads / shape.groups;
  const int parts = (shared_heads + heads_per_block - 1) / heads_per_block;
  const int group = blockIdx.y / parts, part = blockIdx.y % parts;
  const int head0 = group * shared_heads + part * heads_per_block;
  const int end = min(head0 + heads_per_block, (group + 1) * shared_heads);
  const PaddedTile<N> b_tile{shared_address(memory)}, c_tile{b_tile.address + Tile::bc_bytes};
  const PaddedTile<scan_chunk> scores_tile{c_tile.address + Tile::bc_bytes};  // [s, t]

  __device__ unsigned char* stage(int head) const {
    return memory + Tile::stages_at + (head - head0) % Tile::stages * Tile::stage_bytes;
  }
  __device__ HeadSums& sums(int head) const {
    return reinterpret_cast<HeadSums*>(memory + Tile::sums_at)[(head - head0) % 2];
  }
  __device__ int64_t row_of(int token) const {
    return (chunk * scan_chunk + token) * int64_t{shape.batch} + batch;
  }
  __device__ int valid() const { return shape.tokens - chunk * scan_chunk; }
  __device__ int inner() const { return shape.heads * shape.head_dim; }
  __device__ const T* columns(int column) const {
    return static_cast<const T*>(rows.xbc.data) + row_of(0) * rows.xbc.stride + column;
  }

  __device__ void copy_bc() const {
    for (int i = 0; i < 2; ++i) {
      copy_tile<N, scan_chunk, threads>(PaddedTile<N>{b_tile.address + i * Tile::bc_bytes},
                                        columns(inner() + (i * shape.groups + group) * shape.state),
                                        rows.xbc.stride * shape.batch, valid(), shape.state);
    }
  }
  __device__ void copy_head(int head) const {
    if (head < end) {
      const HeadTiles<P> to(stage(head));
      const int column = head * shape.head_dim;
      copy_tile<P, scan_chunk, threads>(to.x, columns(column), rows.xbc.stride * shape.batch, valid(),
                                        shape.head_dim);
      copy_tile<P, scan_chunk, threads>(to.dy,
                                        static_cast<const T*>(gradient.dy) + row_of(0) * inner() + column,
                                        int64_t{inner()} * shape.batch, valid(), shape.head_dim);
      const int64_t state =
          ((int64_t{batch} * shape.chunks + chunk) * shape.heads + head) * shape.head_dim * shape.state;
      copy_tile<N, P, threads>(to.state, static_cast<const T*>(rows.states) + state, shape.state,
                               shape.head_dim, shape.state);
      copy_tile<N, P, threads>(to.dstate, static_cast<const T*>(gradient.dstates) + state, shape.state,
                               shape.head_dim, shape.state);
      ChunkTokens::copy(to.dstate.address + Tile::state_bytes, shape, tokens, batch, head, chunk);
    }
    cp_async_commit();
  }

  /// C_t . B_s of s = tile_row + g (+ 8), t = 16 side + ...: zero where no t is after s.
  __device__ void score(ScanAccumulators<2>& scores) const {
    clear<2>(scores);
    if (16 * side < tile_row) return;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      uint32_t a[4], b[4];
      b_tile.load_a(a, tile_row, k);
      c_tile.load_b(b, 16 * side, k);
      mma_pair<T>(scores[0], scores[1], a, b);
    }
  }

  /// Tokens with each other: m to shared memory, dscores are added up.
  __device__ void within(const HeadTiles<P>& head, const ScanAccumulators<2>& scores,
                         ScanAccumulators<2>& dscores, HeadSums& sum) const {
    if (16 * side < tile_row) return;
    ScanAccumulators<2> xdy;
    clear<2>(xdy);
#pragma unroll
    for (int k = 0; k < P; k += 16) {
      uint32_t a[4], b[4];
      head.x.load_a(a, tile_row, k);
      head.dy.load_b(b, 16 * side, k);
      mma_pair<T>(xdy[0], xdy[1], a, b);
    }
    float of_s[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int t = 16 * side + 8 * n + t2;
      float of_t[2] = {0.0f, 0.0f};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int s = tile_row + g + 8 * half;
        float mixed[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float decay = head.tokens.between(s, t + i), score = scores[n][2 * half + i];
          const float dscore = head.tokens.dt[s] * xdy[n][2 * half + i] * decay;
          mixed[i] = score * decay;
          dscores[n][2 * half + i] += dscore;
          of_t[i] += dscore * score;
          of_s[half] += dscore * score;
        }
        scores_tile.set_pair(s, t, round_pair<T>(mixed[0], mixed[1]));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
          of_t[i] += __shfl_xor_sync(0xFFFFFFFFu, of_t[i], offset);
        if (g == 0) sum.received[warp % 4][t + i] = of_t[i];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_s[half] = row_sum(of_s[half]);
      if (t2 == 0) sum.sent[side][tile_row + g + 8 * half] = of_s[half];
    }
  }

  /// total += factor * rows of (a_tile state), of 32 columns of the state.
  template <typename Factor, typename Each>
  __device__ void add_state(const PaddedTile<P>& a_tile, const PaddedTile<N>& state, Factor&& factor,
                            ScanAccumulators<4>& total, Each&& each) const {
    ScanAccumulators<4> product;
    clear<4>(product);
#pragma unroll
    for (int k = 0; k < P; k += 16) {
      uint32_t a[4], b[4];
      a_tile.load_a(a, tile_row, k);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        state.load_b_rows(b, k, 32 * side + 8 * n);
        mma_pair<T>(product[n], product[n + 1], a, b);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + g + 8 * half;
      const float f = factor(row);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          product[n][i] *= f;
          total[n][i] += product[n][i];
        }
      }
      each(row, half, product);
    }
  }

  /// du of this warp's tokens, of 16 channels from `column` on.
  __device__ void differentiate_x(int head_index, const HeadTiles<P>& head, int column, float (&dux)[2],
                                  float (&written)[2], float& dyx) const {
    ScanAccumulators<2> du;
    clear<2>(du);
    uint32_t a[4], b[4];
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      b_tile.load_a(a, tile_row, k);
      head.dstate.load_b(b, column, k);
      mma_pair<T>(du[0], du[1], a, b);
    }
    float2 x[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int s = tile_row + g + 8 * half;
      const float end_decay = head.tokens.end[s], dt = head.tokens.dt[s];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        x[n][half] = head.x.template pair<T>(s, column + 8 * n + t2);
        du[n][2 * half] *= end_decay;
        du[n][2 * half + 1] *= end_decay;
        written[half] += dt * (x[n][half].x * du[n][2 * half] + x[n][half].y * du[n][2 * half + 1]);
      }
    }
#pragma unroll
    for (int k = 0; k < scan_chunk; k += 16) {
      if (k < tile_row) continue;
      scores_tile.load_a(a, tile_row, k);
      head.dy.load_b_rows(b, k, column);
      mma_pair<T>(du[0], du[1], a, b);
    }
    const float D = rows.D[head_index];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int s = tile_row + g + 8 * half;
      const float dt = head.tokens.dt[s];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 dy = head.dy.template pair<T>(s, column + 8 * n + t2), own = x[n][half];
        float &low = du[n][2 * half], &high = du[n][2 * half + 1];
        dux[half] += own.x * low + own.y * high;
        dyx += own.x * dy.x + own.y * dy.y;
        low = dt * low + D * dy.x;
        high = dt * high + D * dy.y;
      }
      const bool inside = s < valid() && column + store_column() < shape.head_dim;
      T* const to = static_cast<T*>(gradient.dx) + row_of(s) * inner() + head_index * shape.head_dim + column;
      store_row<T>(to, inside, du[0], du[1], half);
    }
  }
  __device__ void differentiate_x(int head_index, const HeadTiles<P>& head, HeadSums& sum) const {
    float dux[2] = {0.0f, 0.0f}, written[2] = {0.0f, 0.0f}, dyx = 0.0f, kept = 0.0f;
    for (int column = 16 * side; column < P; column += 64)
      differentiate_x(head_index, head, column, dux, written, dyx);
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < P * N / 8; i += threads)
      kept +=
          dot(head.state.pack(i / (N / 8), i % (N / 8) * 8), head.dstate.pack(i / (N / 8), i % (N / 8) * 8));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      dux[half] = row_sum(dux[half]);
      written[half] = row_sum(written[half]);
      if (t2 != 0) continue;
      sum.dux[side][tile_row + g + 8 * half] = dux[half];
      sum.written[side][tile_row + g + 8 * half] = written[half];
    }
    kept = warp_sum(kept);
    dyx = warp_sum(dyx);
    if (lane > 0) return;
    sum.kept[warp] = kept;
    sum.dyx[warp] = dyx;
  }

  __device__ static float dot(const uint4& a, const uint4& b) {
    const auto of_pair = [](uint32_t x, uint32_t y) {
      const float2 first = widen_pair<T>(x), second = widen_pair<T>(y);
      return first.x * second.x + first.y * second.y;
    };
    return (of_pair(a.x, b.x) + of_pair(a.y, b.y)) + (of_pair(a.z, b.z) + of_pair(a.w, b.w));
  }

  /// By one warp: the gradients of the time steps, and sums over the tokens. A lane has two tokens.
  __device__ void differentiate_steps(int head) const {
    const HeadSums& sum = sums(head);
    const int64_t at = ((int64_t{batch} * shape.heads + head) * shape.chunks + chunk) * scan_chunk + 2 * lane;
    const float2 dt = *reinterpret_cast<const float2*>(tokens.dt + at);
    const float kept = warp_sum(lane < warps ? sum.kept[lane] : 0.0f);
    const float dD = warp_sum(lane < warps ? sum.dyx[lane] : 0.0f);
    float dux[2] = {0.0f, 0.0f}, dgamma[2] = {0.0f, 0.0f}, written = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        dux[i] += sum.dux[k][t];
        dgamma[i] += (sum.received[k][t] - sum.sent[k][t]) + (sum.read[k][t] - sum.written[k][t]);
        written += sum.written[k][t];
      }
    }
    written = warp_sum(written);
    if (lane == 31) dgamma[1] += written + tokens.start[at + 1] * kept;
    float after = dgamma[0] + dgamma[1];  // the sum from this lane's tokens on
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_down_sync(0xFFFFFFFFu, after, offset);
      if (lane + offset < 32) after += other;
    }
    const float dg[2] = {after, after - dgamma[0]};
    const float decay = -expf(gradient.A_log[head]);
    float draw_sum = 0.0f, dlog_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float step = i == 0 ? dt.x : dt.y;
      const bool free = step > gradient.least && step < gradient.most;
      const float draw = free ? -expm1f(-step) * (dux[i] + decay * dg[i]) : 0.0f;
      draw_sum += draw;
      dlog_sum += decay * step * dg[i];
      if (2 * lane + i >= valid()) continue;
      T* const to = static_cast<T*>(const_cast<void*>(gradient.draw.data));
      to[row_of(2 * lane + i) * gradient.draw.stride + head] = round_to<T>(draw);
    }
    draw_sum = warp_sum(draw_sum);
    dlog_sum = warp_sum(dlog_sum);
    if (lane > 0) return;
    float* const to = gradient.sums + (int64_t{batch} * shape.chunks + chunk) * 3 * shape.heads + head;
    to[0] = draw_sum;
    to[shape.heads] = dlog_sum;
    to[2 * shape.heads] = dD;
  }

  /// The scores' part of dB and dC, and both to memory.
  __device__ void finish(const ScanAccumulators<2>& dscores, ScanAccumulators<4>& dB,
                         ScanAccumulators<4>& dC) const {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scores_tile.set_pair(tile_row + g + 8 * half, 16 * side + 8 * n + t2,
                             round_pair<T>(dscores[n][2 * half], dscores[n][2 * half + 1]));
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < scan_chunk; k += 16) {
      uint32_t a[4], b[4];
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        if (k >= tile_row) {
          scores_tile.load_a(a, tile_row, k);
          c_tile.load_b_rows(b, k, 32 * side + 8 * n);
          mma_pair<T>(dB[n], dB[n + 1], a, b);
        }
        if (k <= tile_row) {
          scores_tile.load_a_transposed(a, k, tile_row);
          b_tile.load_b_rows(b, k, 32 * side + 8 * n);
          mma_pair<T>(dC[n], dC[n + 1], a, b);
        }
      }
    }
    const int64_t tokens_in_all = int64_t{shape.tokens} * shape.batch;
    const int width = shape.groups * shape.state;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = tile_row + g + 8 * half;
      if (token >= valid()) continue;
      float* const to =
          gradient.dbc + (part * tokens_in_all + row_of(token)) * 2 * width + group * shape.state;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int column = 32 * side + 8 * n + t2;
        if (column >= shape.state) break;
        *reinterpret_cast<float2*>(to + column) = make_float2(dB[n][2 * half], dB[n][2 * half + 1]);
        *reinterpret_cast<float2*>(to + width + column) = make_float2(dC[n][2 * half], dC[n][2 * half + 1]);
      }
    }
  }

  __device__ void add_head(int index, const ScanAccumulators<2>& scores, ScanAccumulators<2>& dscores,
                           ScanAccumulators<4>& dB, ScanAccumulators<4>& dC) const {
    const HeadTiles<P> head(stage(index));
    HeadSums& sum = sums(index);
    within(head, scores, dscores, sum);
    add_state(
        head.dy, head.state, [&](int t) { return head.tokens.start[t]; }, dC,
        [&](int t, int half, const ScanAccumulators<4>& product) {
          float read = 0.0f;
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const float2 c = c_tile.template pair<T>(t, 32 * side + 8 * n + t2);
            read += c.x * product[n][2 * half] + c.y * product[n][2 * half + 1];
          }
          read = row_sum(read);
          if (t2 == 0) sum.read[side][t] = read;
        });
    add_state(
        head.x, head.dstate, [&](int s) { return head.tokens.dt[s] * head.tokens.end[s]; }, dB,
        [](int, int, const ScanAccumulators<4>&) {});
    __syncthreads();
    differentiate_x(index, head, sum);
  }

  __device__ void run() const {
    for (int i = static_cast<int>(threadIdx.x); i < Tile::scores_bytes / 4; i += threads)
      reinterpret_cast<uint32_t*>(memory + 2 * Tile::bc_bytes)[i] = 0;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * 4 * scan_chunk; i += threads) {
      HeadSums& sum = sums(head0 + i / (4 * scan_chunk));
      sum.received[i / scan_chunk % 4][i % scan_chunk] = 0.0f;
      sum.sent[i / scan_chunk % 4][i % scan_chunk] = 0.0f;
    }
    for (int s = 0; s < Tile::stages; ++s)
      ChunkTokens::no_documents(stage(head0 + s) + 2 * Tile::x_bytes + 2 * Tile::state_bytes);
    __syncthreads();
    copy_bc();
    copy_head(head0);
    cp_async_wait<0>();
    __syncthreads();
    ScanAccumulators<2> scores, dscores;
    ScanAccumulators<4> dB, dC;
    score(scores);
    clear<2>(dscores);
    clear<4>(dB);
    clear<4>(dC);
    for (int head = head0; head < end; ++head) {
      if (Tile::stages == 1 && head > head0) copy_head(head);
      cp_async_wait<0>();
      __syncthreads();
      if (Tile::stages > 1) copy_head(head + 1);
      if (head > head0 && warp == head % warps) differentiate_steps(head - 1);
      add_head(head, scores, dscores, dB, dC);
      if (Tile::stages == 1) __syncthreads();
    }
    finish(dscores, dB, dC);
    if (warp == 0) differentiate_steps(end - 1);
  }
};

template <typename T, int P>
__global__ void __launch_bounds__(threads, 1)
    scan_backward_kernel(ScanShape shape, ScanTokens tokens, ScanRows rows, ScanGradient gradient) {
  extern __shared__ __align__(16) unsigned char memory[];
  BackwardBlock<T, P>{.shape = shape, .tokens = tokens, .rows = rows, .gradient = gradient, .memory = memory}
      .run();
}

}  // namespace

int scan_parts(const ScanShape& shape) {
  return static_cast<int>(ceil_div(shape.heads / shape.groups, heads_per_block));
}

void scan_backward(const ScanShape& shape, const ScanTokens& tokens, const ScanRows& rows,
                   const ScanGradient& gradient, CUstream_st* stream) {
  with_scan(shape, [&]<typename T, int P>(T, std::integral_constant<int, P>) {
    using Tile = BackwardTile<P>;
    allow_scan_memory(scan_backward_kernel<T, P>, Tile::shared_bytes);
    const dim3 grid(shape.chunks, static_cast<unsigned>(shape.groups * scan_parts(shape)), shape.batch);
    scan_backward_kernel<T, P><<<grid, threads, Tile::shared_bytes, stream>>>(shape, tokens, rows, gradient);
    check_launch("scan_backward");
  });
}

}  // namespace teratron::cuda
