// Forward of fused_attention.h: a block computes the outputs of 128 queries of one head, 32 per warp, with
// the next keys and values on their way (Dao 2023, "FlashAttention-2").
//   s = scale q k^T + bias, M = max s, y = sum exp(s - M) v / sum exp(s - M), rescaled when M grows
// Bytes: q is read once, k and v once per block of queries; no scores are stored.
#include "teratron/kernels/attention/fused_attention_tile.cuh"

namespace teratron::cuda {
namespace {

/// Twice as many keys at a time where registers allow.
template <int D>
struct ForwardTile {
  static constexpr int warps = 4, threads = 32 * warps, MT = 2, NT = D == 64 ? 8 : 4;
  static constexpr int queries = 16 * MT * warps, keys = 8 * NT;
  // Shared memory: queries; two stages of keys, values and a window of the bias.
  static constexpr int query_bytes = queries * D * 2, key_bytes = keys * D * 2,
                       bias_bytes = (queries + keys) * 4;
  static constexpr int stage_bytes = 2 * key_bytes + bias_bytes;
  static constexpr int shared_bytes = query_bytes + 2 * stage_bytes;
};

/// Online softmax of this lane's queries. The sums are of this lane's keys only.
template <int MT>
struct RowStatistics {
  float max[MT][2], sum[MT][2];

  __device__ RowStatistics() {
    fill(max, -INFINITY);
    fill(sum, 0.0f);
  }

  /// s -> 2^(scale s - max); the output so far is rescaled.
  template <int NT, int N>
  __device__ void add(Accumulators<MT, NT>& s, float scale, Accumulators<MT, N>& output) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < NT; ++n) top = fmaxf(top, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
        top = fmaxf(max[mt][half], top * scale);
        const float base = top == -INFINITY ? 0.0f : top;  // so that -inf contributes 0
        const float decay = fast_exp2(max[mt][half] - base);
        max[mt][half] = top;
        float total = sum[mt][half] * decay;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[mt][n][i] = fast_exp2(fmaf(s[mt][n][i], scale, -base));
            total += s[mt][n][i];
          }
        }
        sum[mt][half] = total;
#pragma unroll
        for (int n = 0; n < N; ++n) {
          output[mt][n][2 * half] *= decay;
          output[mt][n][2 * half + 1] *= decay;
        }
      }
    }
  }
  /// Over the lanes of a row.
  __device__ void finish() {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[mt][half] += __shfl_xor_sync(0xFFFFFFFFu, sum[mt][half], 1);
        sum[mt][half] += __shfl_xor_sync(0xFFFFFFFFu, sum[mt][half], 2);
      }
    }
  }
};

template <typename T, int D, bool drops, bool biased>
struct Forward {
  using Tile = ForwardTile<D>;
  static constexpr int MT = Tile::MT, NT = Tile::NT;

  const FusedAttentionArgs& args;
  const int first_query, head, batch;
  const SharedAddress shared;
  HeadRows<T> k, v;

  __device__ Forward(const FusedAttentionArgs& all, SharedAddress memory)
      : args(all),
        first_query(static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::queries),  // longest rows first
        head(blockIdx.y),
        batch(blockIdx.z),
        shared(memory),
        k(all.k, batch, head / (all.heads / all.groups), all.mask.keys, all.channels),
        v(all.v, batch, head / (all.heads / all.groups), all.mask.keys, all.channels) {}

  __device__ int stage_offset(int tile) const { return Tile::query_bytes + tile % 2 * Tile::stage_bytes; }

  __device__ void load_stage(int tile) const {
    const SharedAddress stage = shared + stage_offset(tile);
    load_tile<D, Tile::keys, Tile::threads>(SharedTile<D>{stage}, k, tile * Tile::keys);
    load_tile<D, Tile::keys, Tile::threads>(SharedTile<D>{stage + Tile::key_bytes}, v, tile * Tile::keys);
    if constexpr (biased) {
      load_bias<Tile::queries + Tile::keys, Tile::threads>(
          stage + 2 * Tile::key_bytes, args, head, tile * Tile::keys - (first_query + Tile::queries - 1));
    }
  }

  /// The bias of this lane for add_bias().
  __device__ const float* window(const unsigned char* memory, int tile) const {
    const auto* bias = reinterpret_cast<const float*>(memory + stage_offset(tile) + 2 * Tile::key_bytes);
    return bias + Tile::queries - (warp_index() + 1) * 16 * MT + 7 + 2 * lane_pair() - lane_row();
  }

  __device__ void run(const unsigned char* memory) {
    const int warp_row = warp_index() * 16 * MT, first = first_query + warp_row;
    load_tile<D, Tile::queries, Tile::threads>(
        SharedTile<D>{shared}, HeadRows<T>(args.q, batch, head, args.mask.queries, args.channels),
        first_query);
    const LaneQueries<MT> queries(args, batch, head, first);
    const KeyRange seen = queries.of_warp(), block = block_range();
    const int begin = block.begin / Tile::keys, end = (block.end + Tile::keys - 1) / Tile::keys;
    if (begin < end) load_stage(begin);
    cp_async_commit();

    const SharedOperand<D> operand{{shared}, warp_row};
    Accumulators<MT, D / 8> output;
    clear<MT, D / 8>(output);
    RowStatistics<MT> statistics;
    for (int tile = begin; tile < end; ++tile) {
      cp_async_wait<0>();
      __syncthreads();
      if (tile + 1 < end) load_stage(tile + 1);
      cp_async_commit();
      const int first_key = tile * Tile::keys;
      if (first_key >= seen.end || first_key + Tile::keys <= seen.begin) continue;
      const SharedTile<D> keys{shared + stage_offset(tile)}, values{keys.address + Tile::key_bytes};
      Accumulators<MT, NT> s;
      clear<MT, NT>(s);
      multiply_transposed<T, D, MT, NT>(s, operand, keys);
      float scale = args.scale * static_cast<float>(log2_e);
      if constexpr (biased) {
        add_bias<MT, NT>(s, scale, window(memory, tile));
        scale = 1.0f;
      } else if (args.softcap > 0.0f) {
        soft_cap<MT, NT>(s, args.scale, args.softcap);
        scale = static_cast<float>(log2_e);
      }
      queries.template hide<NT>(s, first_key);
      statistics.add(s, scale, output);
      if constexpr (drops) {
        for_each_kept<MT, NT>(args.dropout, queries, first_key, [&](int mt, int n, int i, bool kept) {
          s[mt][n][i] = kept ? s[mt][n][i] : 0.0f;
        });
      }
      multiply<T, D, MT, NT>(output, s, values);
    }
    statistics.finish();
    write(output, statistics, first);
  }

  __device__ KeyRange block_range() const {
    const int last = min(first_query + Tile::queries, args.mask.queries) - 1;
    return {LaneQueries<MT>::range_of(args, batch, first_query).begin,
            LaneQueries<MT>::range_of(args, batch, last).end};
  }

  __device__ void write(const Accumulators<MT, D / 8>& output, const RowStatistics<MT>& statistics,
                        int first) const {
    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = statistics.sum[mt][half];
        factor[mt][half] = sum == 0.0f ? 0.0f : static_cast<float>(args.dropout.scale) / sum;
        const int query = first + 16 * mt + 8 * half + lane_row();
        if (lane_pair() != 0 || query >= args.mask.queries) continue;
        args.logsumexp[LaneQueries<MT>::score_row(args, batch, head, query)] =
            sum == 0.0f ? INFINITY : statistics.max[mt][half] + log2f(sum);
      }
    }
    store_rows<T, D, MT>(HeadRows<T>(args.y, batch, head, args.mask.queries, args.channels), first, output,
                         factor);
  }
};

template <typename T, int D, bool drops, bool biased>
__global__ void __launch_bounds__(ForwardTile<D>::threads, 2) forward_kernel(FusedAttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Forward<T, D, drops, biased>(args, shared_address(memory)).run(memory);
}

__global__ void __launch_bounds__(256) ranges_kernel(FusedAttentionArgs args) {
  const int query = blockIdx.x * 256 + static_cast<int>(threadIdx.x), batch = blockIdx.y;
  if (query >= args.mask.queries) return;
  args.ranges[static_cast<int64_t>(batch) * args.mask.queries + query] = key_range(args.mask, batch, query);
}

}  // namespace

void fused_attention_forward(const FusedAttentionArgs& args, CUstream_st* stream) {
  if (args.ranges != nullptr) {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.mask.queries, 256)), args.batch);
    ranges_kernel<<<grid, 256, 0, stream>>>(args);
    check_launch("ranges of attention");
  }
  with_fused_attention(
      args, [&]<typename T, int D, bool drops, bool biased>(
                T, std::integral_constant<int, D>, std::bool_constant<drops>, std::bool_constant<biased>) {
        using Tile = ForwardTile<D>;
        const auto kernel = forward_kernel<T, D, drops, biased>;
        allow_shared_memory(kernel, Tile::shared_bytes);
        const dim3 grid(static_cast<unsigned>(ceil_div(args.mask.queries, Tile::queries)), args.heads,
                        args.batch);
        kernel<<<grid, Tile::threads, Tile::shared_bytes, stream>>>(args);
        check_launch("fused attention");
      });
}

}  // namespace teratron::cuda
