// Gradient of the queries and of the bias (fused_attention.h). A block computes 128 queries of one head, as
// the forward, and recomputes the scores of 32 keys at a time:
//   P = 2^(s - logsumexp), dP = keep dy v^T / (1 - p), dS = P (dP - delta), dq = scale dS k
// The sum over a slab's diagonals of dS is the gradient of the bias.
// Bytes: q, dy, logsumexp and delta are read once, k and v once per block of queries, dq is written once.
#include "teratron/kernels/attention/fused_attention_tile.cuh"

namespace teratron::cuda {
namespace {

template <int D>
struct DqTile {
  static constexpr int MT = D == 64 ? 2 : 1, NT = 4, queries = 128, keys = 8 * NT;
  static constexpr int warps = queries / (16 * MT), threads = 32 * warps, blocks_per_sm = D == 64 ? 2 : 1;
  static constexpr int pitch = 16 * MT + 40;  // of a row of a warp's diagonals
  // Shared memory: queries and output gradients; two stages of keys, values and a window of the bias; the
  // diagonals of each warp.
  static constexpr int query_bytes = queries * D * 2, key_bytes = keys * D * 2,
                       bias_bytes = (queries + keys) * 4;
  static constexpr int stage_bytes = 2 * key_bytes + bias_bytes;
  static constexpr int diagonals_offset = 2 * query_bytes + 2 * stage_bytes;
  static constexpr int shared_bytes = diagonals_offset + warps * 8 * pitch * 4;
};

/// Sums over the diagonals of a warp's dS [16 MT, 32], 32 keys after another. The diagonals of neighboring
/// tiles overlap: what is not complete is carried along.
template <int MT, int pitch>
struct DiagonalSums {
  static constexpr int NT = 4, columns = 16 * MT + 31;
  float* scratch;  // of this warp: a row for each g
  float* out;      // the slab
  float carry = 0;

  /// Nothing is summed without a slab.
  __device__ DiagonalSums(float* shared, float* slab) : scratch(shared), out(slab) {
    if (out == nullptr) return;
    for (int i = threadIdx.x % 32; i < 8 * pitch; i += 32) scratch[i] = 0.0f;
    __syncwarp();
  }

  __device__ void add(const Accumulators<MT, NT>& ds, int first_key) {
    const int lane = threadIdx.x % 32;
    float* const row = scratch + lane_row() * pitch + 7 + 2 * lane_pair() - lane_row();
#pragma unroll
    for (int k = 0; k < NT + 2 * MT - 1; ++k) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r) {  // as add_bias()
          const int n = k - (2 * MT - 1) + r;
          if (n >= 0 && n < NT) sum += ds[r / 2][n][r % 2 * 2 + c];
        }
        row[8 * k + c] = sum;
      }
    }
    __syncwarp();
    out[first_key + lane] = carry + column(lane);
    carry = 32 + lane < columns ? column(32 + lane) : 0.0f;
    __syncwarp();
  }
  __device__ void finish(int end_key) { out[end_key + threadIdx.x % 32] = carry; }

  __device__ float column(int i) const {
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < 8; ++g) sum += scratch[g * pitch + i];
    return sum;
  }
};

template <typename T, int D, bool drops, bool biased>
struct Dq {
  using Tile = DqTile<D>;
  using Queries = LaneQueries<Tile::MT>;
  static constexpr int MT = Tile::MT, NT = Tile::NT;

  const FusedAttentionArgs& args;
  const int first_query, head, batch, first;  // `first` query of this warp
  const SharedAddress shared;
  HeadRows<T> k, v;
  RegisterOperand<D, MT> q, dy;
  float logsumexp[MT][2], delta[MT][2];

  __device__ Dq(const FusedAttentionArgs& all, SharedAddress memory)
      : args(all),
        first_query(static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::queries),
        head(blockIdx.y),
        batch(blockIdx.z),
        first(first_query + warp_index() * 16 * MT),
        shared(memory),
        k(all.k, batch, head / (all.heads / all.groups), all.mask.keys, all.channels),
        v(all.v, batch, head / (all.heads / all.groups), all.mask.keys, all.channels) {}

  __device__ HeadRows<T> query_rows(const HeadTensor& x) const {
    return HeadRows<T>(x, batch, head, args.mask.queries, args.channels);
  }
  __device__ int stage_offset(int tile) const { return 2 * Tile::query_bytes + tile % 2 * Tile::stage_bytes; }

  __device__ void load_stage(int tile) const {
    const SharedAddress stage = shared + stage_offset(tile);
    load_tile<D, Tile::keys, Tile::threads>(SharedTile<D>{stage}, k, tile * Tile::keys);
    load_tile<D, Tile::keys, Tile::threads>(SharedTile<D>{stage + Tile::key_bytes}, v, tile * Tile::keys);
    if constexpr (biased) {
      load_bias<Tile::queries + Tile::keys, Tile::threads>(
          stage + 2 * Tile::key_bytes, args, head, tile * Tile::keys - (first_query + Tile::queries - 1));
    }
  }

  __device__ const float* window(const unsigned char* memory, int tile) const {
    const auto* bias = reinterpret_cast<const float*>(memory + stage_offset(tile) + 2 * Tile::key_bytes);
    return bias + Tile::queries - (warp_index() + 1) * 16 * MT + 7 + 2 * lane_pair() - lane_row();
  }

  /// Queries and gradients into registers; delta from the outputs.
  __device__ void load_queries() {
    const int warp_row = warp_index() * 16 * MT;
    q.load(SharedTile<D>{shared}, warp_row);
    dy.load(SharedTile<D>{shared + Tile::query_bytes}, warp_row);
    const HeadRows<T> y = query_rows(args.y);
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + 16 * mt + 8 * half + lane_row(), query = min(row, y.count - 1);
        const int64_t score_row = Queries::score_row(args, batch, head, query);
        logsumexp[mt][half] = row < y.count ? args.logsumexp[score_row] : INFINITY;
        delta[mt][half] = dot(dy, y.data + query * y.stride, mt, half);
        if (lane_pair() == 0 && row < y.count) args.delta[score_row] = delta[mt][half];
      }
    }
  }

  /// Product of a row of the operand and a row of y, over the four lanes that share it.
  __device__ float dot(const RegisterOperand<D, MT>& x, const T* y, int mt, int half) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      if (8 * i >= args.channels) break;
      const float2 a = widen_pair<T>(x.a[mt][i / 2][i % 2 * 2 + half]);
      const float2 b = widen_pair<T>(*reinterpret_cast<const uint32_t*>(y + 8 * i + 2 * lane_pair()));
      sum += a.x * b.x + a.y * b.y;
    }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  }

  /// s -> dS, with dp = dy v^T.
  __device__ void score_gradients(Accumulators<MT, NT>& s, Accumulators<MT, NT>& dp, const Queries& queries,
                                  int first_key) const {
    const bool capped = !biased && args.softcap > 0.0f;
    const float scale = biased ? 1.0f : (capped ? 1.0f : args.scale) * static_cast<float>(log2_e);
    const auto gradient = [&](int mt, int n, int i, bool kept) {
      const float z = s[mt][n][i], p = fast_exp2(fmaf(z, scale, -logsumexp[mt][i / 2]));
      const float factor = drops ? static_cast<float>(args.dropout.scale) : 1.0f, d = -delta[mt][i / 2];
      s[mt][n][i] = p * (kept ? fmaf(dp[mt][n][i], factor, d) : d);
      if (capped) s[mt][n][i] *= soft_cap_slope(z, args.softcap);
    };
    if constexpr (drops) {
      for_each_kept<MT, NT>(args.dropout, queries, first_key, gradient);
    } else {
#pragma unroll
      for (int e = 0; e < MT * NT * 4; ++e) gradient(e / (4 * NT), e / 4 % NT, e % 4, true);
    }
  }

  __device__ KeyRange block_range() const {
    const int last = min(first_query + Tile::queries, args.mask.queries) - 1;
    return {Queries::range_of(args, batch, first_query).begin, Queries::range_of(args, batch, last).end};
  }

  __device__ float* slab() const {
    const int slabs = fused_attention_slabs(args), columns = fused_attention_slab_columns(args);
    const int64_t row = (static_cast<int64_t>(batch) * args.heads + head) * slabs + first / (16 * MT);
    return args.dbias_slabs + row * columns;
  }

  __device__ void run(unsigned char* memory) {
    load_tile<D, Tile::queries, Tile::threads>(SharedTile<D>{shared}, query_rows(args.q), first_query);
    load_tile<D, Tile::queries, Tile::threads>(SharedTile<D>{shared + Tile::query_bytes}, query_rows(args.dy),
                                               first_query);
    cp_async_commit();
    const Queries queries(args, batch, head, first);
    const KeyRange seen = queries.of_warp(), block = block_range();
    const int begin = block.begin / Tile::keys, end = (block.end + Tile::keys - 1) / Tile::keys;
    if (begin < end) load_stage(begin);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    load_queries();

    Accumulators<MT, D / 8> dq;
    clear<MT, D / 8>(dq);
    auto* const scratch = reinterpret_cast<float*>(memory + Tile::diagonals_offset);
    const bool sums_bias = biased && args.dbias_slabs != nullptr;
    DiagonalSums<MT, Tile::pitch> diagonals(scratch + warp_index() * 8 * Tile::pitch,
                                            sums_bias ? slab() : nullptr);
    int end_key = 0;
    for (int tile = begin; tile < end; ++tile) {
      cp_async_wait<0>();
      __syncthreads();
      if (tile + 1 < end) load_stage(tile + 1);
      cp_async_commit();
      const int first_key = tile * Tile::keys;
      if (first_key >= seen.end || first_key + Tile::keys <= seen.begin) continue;
      const SharedTile<D> keys{shared + stage_offset(tile)}, values{keys.address + Tile::key_bytes};
      Accumulators<MT, NT> s, dp;
      clear<MT, NT>(s);
      clear<MT, NT>(dp);
      multiply_transposed<T, D, MT, NT>(s, q, keys);
      multiply_transposed<T, D, MT, NT>(dp, dy, values);
      if constexpr (biased) {
        add_bias<MT, NT>(s, args.scale * static_cast<float>(log2_e), window(memory, tile));
      } else if (args.softcap > 0.0f) {
        soft_cap<MT, NT>(s, args.scale, args.softcap);
      }
      queries.template hide<NT>(s, first_key);
      score_gradients(s, dp, queries, first_key);
      if (sums_bias) diagonals.add(s, first_key);
      multiply<T, D, MT, NT>(dq, s, keys);
      end_key = first_key + Tile::keys;
    }
    if (sums_bias && end_key > 0) diagonals.finish(end_key);
    float factor[MT][2];
    fill(factor, args.scale);
    store_rows<T, D, MT>(query_rows(args.dq), first, dq, factor);
  }
};

template <typename T, int D, bool drops, bool biased>
__global__ void __launch_bounds__(DqTile<D>::threads, DqTile<D>::blocks_per_sm)
    dq_kernel(FusedAttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Dq<T, D, drops, biased>(args, shared_address(memory)).run(memory);
}

/// A thread adds up one distance of one head, in the order of samples and slabs.
__global__ void __launch_bounds__(128) add_slabs_kernel(FusedAttentionArgs args) {
  const int distances = args.mask.queries + args.mask.keys - 1, head = blockIdx.y;
  const int i = blockIdx.x * 128 + static_cast<int>(threadIdx.x);
  if (i >= distances) return;
  const int slabs = fused_attention_slabs(args), columns = fused_attention_slab_columns(args);
  const int rows = fused_attention_slab_rows(args.channels);
  float sum = 0.0f;
  for (int batch = 0; batch < args.batch; ++batch) {
    const float* const whole =
        args.dbias_slabs + (static_cast<int64_t>(batch) * args.heads + head) * slabs * columns;
#pragma unroll 4
    for (int slab = 0; slab < slabs; ++slab) {
      const int column = i - (args.mask.queries - 1) + slab * rows + rows - 1;
      if (column >= 0 && column < columns) sum += whole[static_cast<int64_t>(slab) * columns + column];
    }
  }
  args.dbias[static_cast<int64_t>(head) * distances + i] = sum;
}

}  // namespace

void fused_attention_dq(const FusedAttentionArgs& args, CUstream_st* stream) {
  with_fused_attention(
      args, [&]<typename T, int D, bool drops, bool biased>(
                T, std::integral_constant<int, D>, std::bool_constant<drops>, std::bool_constant<biased>) {
        using Tile = DqTile<D>;
        const auto kernel = dq_kernel<T, D, drops, biased>;
        const int bytes = biased ? Tile::shared_bytes : Tile::diagonals_offset;
        allow_shared_memory(kernel, bytes);
        const dim3 grid(static_cast<unsigned>(ceil_div(args.mask.queries, Tile::queries)), args.heads,
                        args.batch);
        kernel<<<grid, Tile::threads, bytes, stream>>>(args);
        check_launch("gradient of queries in fused attention");
      });
  if (args.dbias_slabs == nullptr) return;
  const int64_t distances = args.mask.queries + args.mask.keys - 1;
  const dim3 grid(static_cast<unsigned>(ceil_div(distances, 128)), args.heads);
  add_slabs_kernel<<<grid, 128, 0, stream>>>(args);
  check_launch("gradient of the bias in fused attention");
}

}  // namespace teratron::cuda
