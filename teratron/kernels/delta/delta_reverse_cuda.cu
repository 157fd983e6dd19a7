// The gradients of the states of the gated delta rule (launchers.h), from the last chunk to the first. As in
// the forward kernel a warp has rows of D^T [16, K], the gradient of the state after a chunk, in f32
// registers:
//   dV'^T = (decay to the end) D^T K^T + dY^T P,  X^T = dV'^T (I + A)^-1
//   D^T <- carry D^T + (scale decay dY^T) Q - (beta decay X^T) K
// Bytes: q, k and two squares once for a block's channels, dy once; outputs are written once.
#include "teratron/kernels/delta/delta_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int stages = 2;

template <typename T, int warps>
struct DeltaReverseBlock {
  static constexpr int threads = 32 * warps;
  using Own = WarpStates<T, warps>;
  using Stage = DeltaStage<Own::values>;

  const ScanTokens& tokens;
  const DeltaReverse& args;
  unsigned char* const memory;
  const Own own;

  __device__ DeltaPlace place(int chunk) const { return {own.shape, chunk, own.batch}; }
  __device__ unsigned char* stage(int chunk) const { return memory + chunk % stages * Stage::bytes; }
  __device__ void copy(int chunk) const {
    if (chunk >= 0) {
      const TokenRows dy{args.dy, int64_t{own.shape.heads} * own.shape.head_dim};
      Stage::copy(stage(chunk), {args.qkv, dy, 0, args.parts, tokens}, place(chunk), own);
    }
    cp_async_commit();
  }

  /// out += a square, of a lower triangular square, of the 16 tokens 16 k ... along its rows.
  __device__ static void add_square(const uint32_t (&a)[4], const SquareTile& square, int k,
                                    ScanAccumulators<8>& out) {
#pragma unroll
    for (int n = 0; n <= 2 * k; n += 2) {
      uint32_t b[4];
      square.load_b_rows(b, 16 * k, 8 * n);
      mma_pair<T>(out[n], out[n + 1], a, b);
    }
  }
  /// D^T K^T -> (decay to the end) D^T K^T.
  __device__ void scale_columns(const Stage& from, ScanAccumulators<8>& x) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = 8 * n + own.t2 + i;
        const float factor = from.tokens.end[t] * from.k_lengths[t];
        x[n][i] *= factor;
        x[n][i + 2] *= factor;
      }
    }
  }
  /// The factors of a pair of tokens.
  __device__ static float2 product(const float* a, const float* b, const float* c, float d, int t) {
    return make_float2(a[t] * b[t] * c[t] * d, a[t + 1] * b[t + 1] * c[t + 1] * d);
  }
  __device__ void update(const Stage& from, float scale, const ScanAccumulators<8>& x,
                         ScanAccumulators<state_tiles>& state) const {
    const ChunkTokens& of = from.tokens;
    own.scale(state, of.carry());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int low = 16 * k + own.t2, high = low + 8;
      uint32_t dy[4], a[4];
      from.x.load_a_transposed(dy, 16 * k, own.warp_row);
      const auto of_dy = [&](int t) {
        return make_float2(scale * of.start[t] * from.q_lengths[t],
                           scale * of.start[t + 1] * from.q_lengths[t + 1]);
      };
      scale_operand<T>(dy, of_dy(low), of_dy(high), a);
      own.add_tokens(a, from.q, 16 * k, state);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2;
        const float* const pair = &x[n][i % 2 * 2];
        const float2 f = product(of.dt, of.start, from.k_lengths, -1.0f, 8 * n + own.t2);
        a[i] = round_pair<T>(pair[0] * f.x, pair[1] * f.y);
      }
      own.add_tokens(a, from.k, 16 * k, state);
    }
  }

  __device__ void compute(int chunk, ScanAccumulators<state_tiles>& state) const {
    const Stage from(stage(chunk));
    own.write_chunk(state, place(chunk), args.dstates);
    ScanAccumulators<8> dcorrected, x;
    own.multiply_tokens(state, from.k, dcorrected);
    scale_columns(from, dcorrected);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4];
      from.x.load_a_transposed(a, 16 * k, own.warp_row);
      add_square(a, from.scores, k, dcorrected);
    }
    clear<8>(x);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4];
      as_operand<T>(dcorrected, k, a);
      add_square(a, from.inverse, k, x);
    }
    own.write_tokens(x, place(chunk), args.dvalues);
    update(from, place(chunk).scale(), x, state);
  }

  __device__ void run() const {
    for (int s = 0; s < stages; ++s) ChunkTokens::no_documents<threads>(stage(s) + Stage::tokens_at, tokens);
    copy(own.shape.chunks - 1);
    ScanAccumulators<state_tiles> state;
    own.read(args.initial, state);
    for (int chunk = own.shape.chunks - 1; chunk >= 0; --chunk) {
      cp_async_wait<0>();
      __syncthreads();
      copy(chunk - 1);
      compute(chunk, state);
    }
    own.write(state, args.first);
  }
};

template <typename T, int warps>
__global__ void __launch_bounds__(32 * warps)
    delta_reverse_kernel(ScanShape shape, ScanTokens tokens, DeltaReverse args) {
  extern __shared__ __align__(16) unsigned char memory[];
  DeltaReverseBlock<T, warps>{.tokens = tokens, .args = args, .memory = memory, .own = {shape}}.run();
}

}  // namespace

void delta_reverse(const ScanShape& shape, const ScanTokens& tokens, const DeltaReverse& args,
                   CUstream_st* stream) {
  with_delta_warps(shape, [&]<typename T, int warps>(T, std::integral_constant<int, warps>) {
    using Block = DeltaReverseBlock<T, warps>;
    constexpr int bytes = stages * Block::Stage::bytes;
    allow_scan_memory(delta_reverse_kernel<T, warps>, bytes);
    const dim3 grid(static_cast<unsigned>(ceil_div(shape.head_dim, Block::Own::values)), shape.heads,
                    shape.batch);
    delta_reverse_kernel<T, warps><<<grid, Block::threads, bytes, stream>>>(shape, tokens, args);
    check_launch("delta_reverse");
  });
}

}  // namespace teratron::cuda
