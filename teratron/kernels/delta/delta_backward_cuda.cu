// The gradients of the gated delta rule (launchers.h) from the states S and the gradients D of each chunk. A
// block has a chunk and a head of keys, and goes over 64 values at a time of its heads of values. With X of
// delta_reverse and Y = -X S^T, of q and k of length one, Gamma and A as in delta_rule.h,
//   dP = lower(dY V'^T), dA = -strict_lower(X V'^T), B = beta dA Gamma, E = scale dP Gamma
//   dq = scale decay dY S^T + E k,  dk = E^T q + decay V' D^T + (B + B^T) k + beta decay Y,  dv = beta X
//   dbeta = X . v + decay Y . k + sum over s of dA Gamma k k^T
//   dgamma: rows minus columns of dP P + dA A, what dq has of S, and dk of Y, minus what it has of D
// Bytes: q and k once, all others once; dq, dk and dv once.
#include "teratron/kernels/delta/delta_backward_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int warps = delta_backward_warps, threads = 32 * warps, stages = 2, values = delta_backward_values;
constexpr int shared_bytes = stages_at + stages * stage_bytes;

// What a warp sums for one head over its values.
struct HeadProducts {
  ScanAccumulators<2> dP, XV;  // rows t, columns s
  float read[2], erased[2], written[2], kept;

  __device__ void clear_all() {
    clear<2>(dP);
    clear<2>(XV);
    read[0] = read[1] = erased[0] = erased[1] = written[0] = written[1] = kept = 0.0f;
  }
};

template <typename T>
struct DeltaBackwardBlock {
  const ScanShape& shape;
  const ScanTokens& tokens;
  const DeltaBackward& args;
  unsigned char* const memory;
  const DeltaPlace place{shape, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.z)};
  const int group = blockIdx.y, shared_heads = shape.heads / shape.groups, head0 = group * shared_heads;
  const int value_tiles = (shape.head_dim + values - 1) / values, items = shared_heads * value_tiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t2 = lane % 4 * 2;
  const int tile_row = warp % 4 * 16, side = warp / 4;  // 16 rows, a quarter of the columns
  const KeyTile q{shared_address(memory)}, k{q.address + key_tile_bytes};
  const SquareTile E{q.address + squares_at}, B{E.address + square_tile_bytes};  // [t, s]

  __device__ unsigned char* stage(int item) const { return memory + stages_at + item % stages * stage_bytes; }
  __device__ int head_of(int item) const { return head0 + item / value_tiles; }
  __device__ int value_of(int item) const { return item % value_tiles * values; }
  __device__ DeltaHeadSums& sums(int head) const {
    return reinterpret_cast<DeltaHeadSums*>(memory + sums_at)[(head - head0) % 2];
  }
  __device__ int64_t all_values() const { return int64_t{shape.heads} * shape.head_dim; }

  __device__ void copy(int item) const {
    if (item < items) {
      const DeltaTiles to(stage(item));
      const int head = head_of(item), value = value_of(item), count = shape.head_dim - value;
      const int64_t column = int64_t{head} * shape.head_dim + value;
      const auto rows = [&](const void* data) { return TokenRows{data, all_values()}; };
      place.copy<threads, T>(to.dy, rows(args.dy), column, count);
      place.copy<threads, T>(to.corrected, rows(args.corrected), column, count);
      place.copy<threads, T>(to.x, rows(args.dvalues), column, count);
      const int64_t state = place.state(head) + int64_t{value} * shape.state;
      copy_tile<key_channels, values, threads>(to.state, static_cast<const T*>(args.states) + state,
                                               shape.state, count, shape.state);
      copy_tile<key_channels, values, threads>(to.dstate, static_cast<const T*>(args.dstates) + state,
                                               shape.state, count, shape.state);
      ChunkTokens::copy<threads>(to.dstate.address + state_tile_bytes, tokens, place, head);
    }
    cp_async_commit();
  }

  /// To length one, as a thread an eighth of a row.
  __device__ void normalize() const {
    const int64_t all = int64_t{shape.batch} * shape.groups * shape.chunks * scan_chunk;
    const int row = threadIdx.x / 8;
#pragma unroll
    for (int tensor = 0; tensor < 2; ++tensor) {
      const float factor = args.lengths[tensor * all + place.lengths(group) + row];
      const KeyTile& tile = tensor == 0 ? q : k;
#pragma unroll
      for (int i = 0; i < key_channels / 16; ++i) {
        const int column = (i * 8 + static_cast<int>(threadIdx.x) % 8) * 2;
        const float2 two = tile.template pair<T>(row, column);
        tile.set_pair(row, column, round_pair<T>(two.x * factor, two.y * factor));
      }
    }
  }

  /// a b^T of rows t = tile_row ..., columns s = 16 side ..., 0 where all s are after t.
  template <int D>
  __device__ void multiply_square(const PaddedTile<D>& a_tile, const PaddedTile<D>& b_tile,
                                  ScanAccumulators<2>& out) const {
    if (16 * side > tile_row) return;
#pragma unroll
    for (int c = 0; c < D; c += 16) {
      uint32_t a[4], b[4];
      a_tile.load_a(a, tile_row, c);
      b_tile.load_b(b, 16 * side, c);
      mma_pair<T>(out[0], out[1], a, b);
    }
  }
  // The product of rows with a state, and the rows whose dot products with it are wanted.
  struct StateProduct {
    const ValueTile& rows;
    const KeyTile &state, &along;
  };
  /// total += factor * rows state; adds this lane's columns of its dot products with `along`.
  template <typename Factor>
  __device__ void add_state(const StateProduct& of, Factor&& factor, ScanAccumulators<4>& total,
                            float (&dot)[2]) const {
    ScanAccumulators<4> product;
    clear<4>(product);
#pragma unroll
    for (int c = 0; c < values; c += 16) {
      uint32_t a[4], b[4];
      of.rows.load_a(a, tile_row, c);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        of.state.load_b_rows(b, c, 32 * side + 8 * n);
        mma_pair<T>(product[n], product[n + 1], a, b);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + g + 8 * half;
      const float f = factor(row);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 x = of.along.template pair<T>(row, 32 * side + 8 * n + t2);
        float &low = product[n][2 * half], &high = product[n][2 * half + 1];
        dot[half] += x.x * low + x.y * high;
        total[n][2 * half] += f * low;
        total[n][2 * half + 1] += f * high;
      }
    }
  }

  /// dv, and its product with v: a thread has eight channels of a token.
  __device__ void differentiate_values(int item, const DeltaTiles& tiles) const {
    const int token = threadIdx.x / 8, channel = threadIdx.x % 8 * 8, head = head_of(item);
    const int64_t column = 2 * place.keys() + int64_t{head} * shape.head_dim + value_of(item) + channel;
    const bool inside = token < place.valid() && value_of(item) + channel < shape.head_dim;
    const uint4 pack = tiles.x.pack(token, channel);
    const float beta = tiles.tokens.dt[token];
    float sum = 0.0f;
    if (inside) {
      const int64_t row = place.row_of(token);
      float v[8], dv[8];
      widen(load<8>(static_cast<const T*>(args.qkv.data) + row * args.qkv.stride + column), v);
      const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = widen_pair<T>(words[i]);
        sum += x.x * v[2 * i] + x.y * v[2 * i + 1];
        dv[2 * i] = beta * x.x;
        dv[2 * i + 1] = beta * x.y;
      }
      store<8>(static_cast<T*>(args.dqkv) + row * (2 * place.keys() + all_values()) + column,
               round_to_pack<T>(dv));
    }
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (threadIdx.x % 8 != 0) return;
    float& to = sums(head).values[token];
    to = value_of(item) == 0 ? sum : to + sum;
  }

  __device__ void add_values(int item, ScanAccumulators<4>& dq, ScanAccumulators<4>& dk,
                             HeadProducts& of) const {
    const DeltaTiles tiles(stage(item));
    const ChunkTokens& own = tiles.tokens;
    multiply_square(tiles.dy, tiles.corrected, of.dP);
    multiply_square(tiles.x, tiles.corrected, of.XV);
    const float scale = place.scale();
    float read[2] = {0.0f, 0.0f}, written[2] = {0.0f, 0.0f};
    add_state({tiles.dy, tiles.state, q}, [&](int t) { return scale * own.start[t]; }, dq, read);
    add_state({tiles.x, tiles.state, k}, [&](int t) { return -own.dt[t] * own.start[t]; }, dk, of.erased);
    add_state({tiles.corrected, tiles.dstate, k}, [&](int s) { return own.end[s]; }, dk, written);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + g + 8 * half;
      of.read[half] += scale * own.start[row] * read[half];
      of.written[half] += own.end[row] * written[half];
    }
#pragma unroll
    for (int i = 0; i < values * key_channels / 8 / threads; ++i) {
      const int at = i * threads + static_cast<int>(threadIdx.x), row = at / (key_channels / 8),
                column = at % (key_channels / 8) * 8;
      of.kept += dot<T>(tiles.state.pack(row, column), tiles.dstate.pack(row, column));
    }
    differentiate_values(item, tiles);
  }

  /// Tokens with each other: E and B to shared memory, and their sums.
  __device__ void multiply_tokens(const ChunkTokens& own, const ScanAccumulators<2>& qk,
                                  const ScanAccumulators<2>& kk, const HeadProducts& of,
                                  DeltaHeadSums& sum) const {
    const float scale = place.scale();
    float of_t[2] = {0.0f, 0.0f}, corrections[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int s = 16 * side + 8 * n + t2;
      float of_s[2] = {0.0f, 0.0f};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = tile_row + g + 8 * half;
        const float beta = own.dt[t];
        float e[2], b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float decay = own.between(s + i, t), strict = s + i < t ? decay : 0.0f;
          e[i] = scale * of.dP[n][2 * half + i] * decay;
          const float correction = -of.XV[n][2 * half + i] * strict;
          b[i] = beta * correction;
          const float both = e[i] * qk[n][2 * half + i] + b[i] * kk[n][2 * half + i];
          corrections[half] += correction * kk[n][2 * half + i];
          of_t[half] += both;
          of_s[i] += both;
        }
        E.set_pair(t, s, round_pair<T>(e[0], e[1]));
        B.set_pair(t, s, round_pair<T>(b[0], b[1]));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
          of_s[i] += __shfl_xor_sync(0xFFFFFFFFu, of_s[i], offset);
        if (g == 0) sum.columns[warp % 4][s + i] = of_s[i];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = tile_row + g + 8 * half;
      of_t[half] = row_sum(of_t[half]);
      corrections[half] = row_sum(corrections[half]);
      if (t2 != 0) continue;
      sum.rows[side][t] = of_t[half];
      sum.corrections[side][t] = corrections[half];
    }
  }
  /// After the last values of a head.
  __device__ void finish_head(int item, const ScanAccumulators<2>& qk, const ScanAccumulators<2>& kk,
                              HeadProducts& of) const {
    DeltaHeadSums& sum = sums(head_of(item));
    const ChunkTokens own(stage(item) + 3 * value_tile_bytes + 2 * state_tile_bytes);
    if (16 * side <= tile_row) multiply_tokens(own, qk, kk, of, sum);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = tile_row + g + 8 * half;
      const float read = row_sum(of.read[half]), erased = row_sum(of.erased[half]),
                  written = row_sum(of.written[half]);
      if (t2 != 0) continue;
      sum.read[side][t] = read;
      sum.erased[side][t] = erased;
      sum.written[side][t] = written;
    }
    const float kept = warp_sum(of.kept);
    if (lane == 0) sum.kept[warp] = kept;
  }
  /// total += square tile (transposed: square^T tile), of 32 columns.
  template <bool transposed>
  __device__ void add_square(const SquareTile& square, const KeyTile& tile,
                             ScanAccumulators<4>& total) const {
#pragma unroll
    for (int c = 0; c < scan_chunk; c += 16) {
      if (transposed ? c < tile_row : c > tile_row) continue;
      uint32_t a[4], b[4];
      if constexpr (transposed) {
        square.load_a_transposed(a, c, tile_row);
      } else {
        square.load_a(a, tile_row, c);
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        tile.load_b_rows(b, c, 32 * side + 8 * n);
        mma_pair<T>(total[n], total[n + 1], a, b);
      }
    }
  }

  __device__ void differentiate_gates(int head) const {
    delta_differentiate_gates<T>(tokens, args, place, head, sums(head));
  }

  /// From the gradient of x of length one to that of x.
  __device__ void write_keys(const KeyTile& tile, int tensor, const ScanAccumulators<4>& d,
                             float (&partial)[4][scan_chunk]) const {
    const int64_t all = int64_t{shape.batch} * shape.groups * shape.chunks * scan_chunk;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + g + 8 * half;
      float along = 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 x = tile.template pair<T>(row, 32 * side + 8 * n + t2);
        along += x.x * d[n][2 * half] + x.y * d[n][2 * half + 1];
      }
      along = row_sum(along);
      if (t2 == 0) partial[side][row] = along;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + g + 8 * half;
      const float along = (partial[0][row] + partial[1][row]) + (partial[2][row] + partial[3][row]);
      const float factor = args.lengths[tensor * all + place.lengths(group) + row];
      T* const to = static_cast<T*>(args.dqkv) + place.row_of(row) * (2 * place.keys() + all_values()) +
                    tensor * place.keys() + group * shape.state + 32 * side;
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        float out[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 x = tile.template pair<T>(row, 32 * side + 8 * (n + i) + t2);
          out[i][2 * half] = factor * (d[n + i][2 * half] - x.x * along);
          out[i][2 * half + 1] = factor * (d[n + i][2 * half + 1] - x.y * along);
        }
        const bool inside = row < place.valid() && 32 * side + 8 * n + store_column() < shape.state;
        store_row<T>(to + 8 * n, inside, out[0], out[1], half);
      }
    }
  }

  __device__ void run() const {
    for (int i = static_cast<int>(threadIdx.x); i < (stages_at - squares_at) / 4; i += threads)
      reinterpret_cast<uint32_t*>(memory + squares_at)[i] = 0;
    for (int s = 0; s < stages; ++s)
      ChunkTokens::no_documents<threads>(stage(s) + 3 * value_tile_bytes + 2 * state_tile_bytes, tokens);
    __syncthreads();
    place.copy<threads, T>(q, args.qkv, group * shape.state, shape.state);
    place.copy<threads, T>(k, args.qkv, place.keys() + group * shape.state, shape.state);
    copy(0);
    cp_async_wait<0>();
    __syncthreads();
    normalize();
    __syncthreads();
    ScanAccumulators<2> qk, kk;
    ScanAccumulators<4> dq, dk;
    clear<2>(qk);
    clear<2>(kk);
    clear<4>(dq);
    clear<4>(dk);
    multiply_square(q, k, qk);
    multiply_square(k, k, kk);
    HeadProducts of;
    for (int item = 0; item < items; ++item) {
      cp_async_wait<0>();
      __syncthreads();
      copy(item + 1);
      if (value_of(item) == 0) {
        of.clear_all();
        if (item > 0 && warp == item % warps) differentiate_gates(head_of(item) - 1);
      }
      add_values(item, dq, dk, of);
      if (item % value_tiles != value_tiles - 1) continue;
      finish_head(item, qk, kk, of);
      __syncthreads();
      add_square<false>(E, k, dq);
      add_square<true>(E, q, dk);
      add_square<false>(B, k, dk);
      add_square<true>(B, k, dk);
    }
    if (warp == 0) differentiate_gates(head_of(items - 1));
    __syncthreads();
    DeltaHeadSums& scratch = sums(head0);
    write_keys(q, 0, dq, scratch.rows);
    write_keys(k, 1, dk, scratch.columns);
  }
};

template <typename T>
__global__ void __launch_bounds__(threads, 1)
    delta_backward_kernel(ScanShape shape, ScanTokens tokens, DeltaBackward args) {
  extern __shared__ __align__(16) unsigned char memory[];
  DeltaBackwardBlock<T>{.shape = shape, .tokens = tokens, .args = args, .memory = memory}.run();
}

}  // namespace

void delta_backward(const ScanShape& shape, const ScanTokens& tokens, const DeltaBackward& args,
                    CUstream_st* stream) {
  with_half_type(shape.dtype, [&]<typename T>(T) {
    allow_scan_memory(delta_backward_kernel<T>, shared_bytes);
    delta_backward_kernel<T>
        <<<dim3(shape.chunks, shape.groups, shape.batch), threads, shared_bytes, stream>>>(shape, tokens,
                                                                                           args);
    check_launch("delta_backward");
  });
}

}  // namespace teratron::cuda
