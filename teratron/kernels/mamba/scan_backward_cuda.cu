// Backward of the chunked recurrence (launchers.h), from the states before the chunks and the gradients dS
// of those after them. A block has a chunk and up to eight heads of a group, whose scores C B^T it computes
// once.
// With m(s, t) = (C_t . B_s) decay(s, t), u = dt x, decays to_t from the chunk's start and from_s to its end:
//   du_s = sum over t of m(s, t) dy_t + from_s dS B_s
//   dB_s = sum over heads of (sum over t of dscore(s, t) C_t + from_s dS^T u_s)
//   dC_t = sum over heads of (sum over s of dscore(s, t) B_s + to_t S^T dy_t)
//   dscore(s, t) = dt_s (x_s . dy_t) decay(s, t)
//   dgamma_t = sum over s of E(s, t) - sum over t' of E(t, t') + to_t dy_t . S C_t - u_t . from_t dS B_t
// with E(s, t) = dscore(s, t) (C_t . B_s), exactly as much in one sum as in the other
//   dg_t = sum over t' >= t of dgamma_t' + dS . (the state after the chunk)
// Bytes: x, dy, the states and dS once, B and C once for eight heads; dx, dB and dC for eight heads, once.
#include "teratron/kernels/mamba/scan_backward_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int warps = scan_backward_warps, threads = 32 * warps, N = max_scan_state;

template <typename T, int P>
struct BackwardBlock {
  using Tile = BackwardTile<P>;

  const ScanShape& shape;
  const ScanTokens& tokens;
  const ScanRows& rows;
  const ScanGradient& gradient;
  unsigned char* const memory;
  const ChunkPlace place{shape, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.z)};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t2 = lane % 4 * 2;
  const int tile_row = warp % 4 * 16,
            side = warp / 4;  // of this warp's products: 16 rows, a quarter of columns
  const int shared_heads = shape.heads / shape.groups;
  const int parts = (shared_heads + scan_backward_heads - 1) / scan_backward_heads;
  const int group = blockIdx.y / parts, part = blockIdx.y % parts;
  const int head0 = group * shared_heads + part * scan_backward_heads;
  const int end = min(head0 + scan_backward_heads, (group + 1) * shared_heads);
  const PaddedTile<N> b_tile{shared_address(memory)}, c_tile{b_tile.address + Tile::bc_bytes};
  const PaddedTile<scan_chunk> scores_tile{c_tile.address + Tile::bc_bytes};  // [s, t]

  __device__ unsigned char* stage(int head) const {
    return memory + Tile::stages_at + (head - head0) % Tile::stages * Tile::stage_bytes;
  }
  __device__ ScanHeadSums& sums(int head) const {
    return reinterpret_cast<ScanHeadSums*>(memory + Tile::sums_at)[(head - head0) % 2];
  }
  __device__ int inner() const { return shape.heads * shape.head_dim; }
  __device__ const T* columns(int column) const {
    return static_cast<const T*>(rows.xbc.data) + place.row_of(0) * rows.xbc.stride + column;
  }

  __device__ void copy_bc() const {
    for (int i = 0; i < 2; ++i) {
      copy_tile<N, scan_chunk, threads>(PaddedTile<N>{b_tile.address + i * Tile::bc_bytes},
                                        columns(inner() + (i * shape.groups + group) * shape.state),
                                        rows.xbc.stride * shape.batch, place.valid(), shape.state);
    }
  }
  __device__ void copy_head(int head) const {
    if (head < end) {
      const HeadTiles<P> to(stage(head));
      const int column = head * shape.head_dim;
      copy_tile<P, scan_chunk, threads>(to.x, columns(column), rows.xbc.stride * shape.batch, place.valid(),
                                        shape.head_dim);
      copy_tile<P, scan_chunk, threads>(
          to.dy, static_cast<const T*>(gradient.dy) + place.row_of(0) * inner() + column,
          int64_t{inner()} * shape.batch, place.valid(), shape.head_dim);
      const int64_t state = place.state(head);
      copy_tile<N, P, threads>(to.state, static_cast<const T*>(rows.states) + state, shape.state,
                               shape.head_dim, shape.state);
      copy_tile<N, P, threads>(to.dstate, static_cast<const T*>(gradient.dstates) + state, shape.state,
                               shape.head_dim, shape.state);
      ChunkTokens::copy<threads>(to.dstate.address + Tile::state_bytes, tokens, place, head);
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
                         ScanAccumulators<2>& dscores, ScanHeadSums& sum) const {
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

  struct TokenSums {
    float dux[2] = {0.0f, 0.0f}, written[2] = {0.0f, 0.0f}, dyx = 0.0f;
  };
  /// du of this warp's tokens, of 16 channels from `column` on.
  __device__ void differentiate_x(int head_index, const HeadTiles<P>& head, int column,
                                  TokenSums& sum) const {
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
        sum.written[half] += dt * (x[n][half].x * du[n][2 * half] + x[n][half].y * du[n][2 * half + 1]);
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
        sum.dux[half] += own.x * low + own.y * high;
        sum.dyx += own.x * dy.x + own.y * dy.y;
        low = dt * low + D * dy.x;
        high = dt * high + D * dy.y;
      }
      const bool inside = s < place.valid() && column + store_column() < shape.head_dim;
      T* const to = static_cast<T*>(const_cast<void*>(gradient.dx.data)) +
                    place.row_of(s) * gradient.dx.stride + head_index * shape.head_dim + column;
      store_row<T>(to, inside, du[0], du[1], half);
    }
  }
  __device__ void differentiate_x(int head_index, const HeadTiles<P>& head, ScanHeadSums& sum) const {
    TokenSums own;
    float kept = 0.0f;
    for (int column = 16 * side; column < P; column += 64) differentiate_x(head_index, head, column, own);
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < P * N / 8; i += threads)
      kept += dot<T>(head.state.pack(i / (N / 8), i % (N / 8) * 8),
                     head.dstate.pack(i / (N / 8), i % (N / 8) * 8));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float dux = row_sum(own.dux[half]), written = row_sum(own.written[half]);
      if (t2 != 0) continue;
      sum.dux[side][tile_row + g + 8 * half] = dux;
      sum.written[side][tile_row + g + 8 * half] = written;
    }
    kept = warp_sum(kept);
    const float dyx = warp_sum(own.dyx);
    if (lane > 0) return;
    sum.kept[warp] = kept;
    sum.dyx[warp] = dyx;
  }

  __device__ void differentiate_steps(int head) const {
    scan_differentiate_steps<T>(tokens, gradient, place, head, sums(head));
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
      if (token >= place.valid()) continue;
      float* const to =
          gradient.dbc + (part * tokens_in_all + place.row_of(token)) * 2 * width + group * shape.state;
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
    ScanHeadSums& sum = sums(index);
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
      ScanHeadSums& sum = sums(head0 + i / (4 * scan_chunk));
      sum.received[i / scan_chunk % 4][i % scan_chunk] = 0.0f;
      sum.sent[i / scan_chunk % 4][i % scan_chunk] = 0.0f;
    }
    for (int s = 0; s < Tile::stages; ++s)
      ChunkTokens::no_documents<threads>(stage(head0 + s) + 2 * Tile::x_bytes + 2 * Tile::state_bytes,
                                         tokens);
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
  return static_cast<int>(ceil_div(shape.heads / shape.groups, scan_backward_heads));
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
