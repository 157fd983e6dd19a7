// Forward of the gated delta rule (launchers.h) from what each chunk needs of itself alone. A warp has 16
// channels of a head's values: its rows of S^T [16, K] stay in f32 registers from chunk to chunk, and are,
// like all that follows from them, operands of its next products as they are:
//   X^T = beta (V^T - decay S^T K^T),  V'^T = X^T (I + A)^-T,  Y^T = scale decay S^T Q^T + V'^T P^T
//   S^T <- carry S^T + (decay to the end V'^T) K
// Bytes: q, k and two squares once for a block's channels, v once; outputs are written once.
#include "teratron/kernels/delta/delta_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int stages = 2;

template <typename T, int warps>
struct DeltaForwardBlock {
  static constexpr int threads = 32 * warps;
  using Own = WarpStates<T, warps>;
  using Stage = DeltaStage<Own::values>;

  const ScanTokens& tokens;
  const DeltaForward& args;
  unsigned char* const memory;
  const Own own;

  __device__ DeltaPlace place(int chunk) const { return {own.shape, chunk, own.batch}; }
  __device__ unsigned char* stage(int chunk) const { return memory + chunk % stages * Stage::bytes; }
  __device__ void copy(int chunk) const {
    if (chunk < own.shape.chunks) {
      const DeltaPlace at = place(chunk);
      Stage::copy(stage(chunk), {args.qkv, args.qkv, 2 * at.keys(), args.parts, tokens}, at, own);
    }
    cp_async_commit();
  }

  /// out += x square^T, of a lower triangular square.
  __device__ static void add_square(const ScanAccumulators<8>& x, const SquareTile& square,
                                    ScanAccumulators<8>& out) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4], b[4];
      as_operand<T>(x, k, a);
#pragma unroll
      for (int n = 2 * k; n < 8; n += 2) {
        square.load_b(b, 8 * n, 16 * k);
        mma_pair<T>(out[n], out[n + 1], a, b);
      }
    }
  }
  /// S^T K^T -> beta (V^T - decay S^T K^T).
  __device__ void correct(const Stage& from, ScanAccumulators<8>& x) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t values[4];
      from.x.load_a_transposed(values, 16 * k, own.warp_row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, t = 8 * n + own.t2;
        const float2 two = widen_pair<T>(values[i]);
        float* const pair = &x[n][i % 2 * 2];
        pair[0] = from.tokens.dt[t] * (two.x - from.tokens.start[t] * from.k_lengths[t] * pair[0]);
        pair[1] =
            from.tokens.dt[t + 1] * (two.y - from.tokens.start[t + 1] * from.k_lengths[t + 1] * pair[1]);
      }
    }
  }
  /// S^T Q^T -> scale decay S^T Q^T.
  __device__ void scale_reads(const Stage& from, float scale, ScanAccumulators<8>& x) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = 8 * n + own.t2 + i;
        const float factor = scale * from.tokens.start[t] * from.q_lengths[t];
        x[n][i] *= factor;
        x[n][i + 2] *= factor;
      }
    }
  }
  __device__ void update(const Stage& from, const ScanAccumulators<8>& corrected,
                         ScanAccumulators<state_tiles>& state) const {
    own.scale(state, from.tokens.carry());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, t = 8 * n + own.t2;
        const float* const pair = &corrected[n][i % 2 * 2];
        a[i] = round_pair<T>(pair[0] * from.tokens.end[t] * from.k_lengths[t],
                             pair[1] * from.tokens.end[t + 1] * from.k_lengths[t + 1]);
      }
      own.add_tokens(a, from.k, 16 * k, state);
    }
  }

  __device__ void compute(int chunk, ScanAccumulators<state_tiles>& state) const {
    const Stage from(stage(chunk));
    own.write_chunk(state, place(chunk), args.states);
    ScanAccumulators<8> x, corrected;
    own.multiply_tokens(state, from.k, x);
    correct(from, x);
    clear<8>(corrected);
    add_square(x, from.inverse, corrected);
    own.write_tokens(corrected, place(chunk), args.corrected);
    if (args.y != nullptr) {
      own.multiply_tokens(state, from.q, x);
      scale_reads(from, place(chunk).scale(), x);
      add_square(corrected, from.scores, x);
      own.write_tokens(x, place(chunk), args.y);
    }
    update(from, corrected, state);
  }

  __device__ void run() const {
    for (int s = 0; s < stages; ++s) ChunkTokens::no_documents<threads>(stage(s) + Stage::tokens_at, tokens);
    copy(0);
    ScanAccumulators<state_tiles> state;
    own.read(args.initial, state);
    for (int chunk = 0; chunk < own.shape.chunks; ++chunk) {
      cp_async_wait<0>();
      __syncthreads();
      copy(chunk + 1);
      compute(chunk, state);
    }
    own.write(state, args.last);
  }
};

template <typename T, int warps>
__global__ void __launch_bounds__(32 * warps)
    delta_forward_kernel(ScanShape shape, ScanTokens tokens, DeltaForward args) {
  extern __shared__ __align__(16) unsigned char memory[];
  DeltaForwardBlock<T, warps>{.tokens = tokens, .args = args, .memory = memory, .own = {shape}}.run();
}

}  // namespace

void delta_forward(const ScanShape& shape, const ScanTokens& tokens, const DeltaForward& args,
                   CUstream_st* stream) {
  with_delta_warps(shape, [&]<typename T, int warps>(T, std::integral_constant<int, warps>) {
    using Block = DeltaForwardBlock<T, warps>;
    constexpr int bytes = stages * Block::Stage::bytes;
    allow_scan_memory(delta_forward_kernel<T, warps>, bytes);
    const dim3 grid(static_cast<unsigned>(ceil_div(shape.head_dim, Block::Own::values)), shape.heads,
                    shape.batch);
    delta_forward_kernel<T, warps><<<grid, Block::threads, bytes, stream>>>(shape, tokens, args);
    check_launch("delta_forward");
  });
}

}  // namespace teratron::cuda
