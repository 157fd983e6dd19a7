// Gradients of keys and values (fused_attention.h). A block computes 128 keys of one group of heads and
// recomputes the transposed scores of 32 queries at a time, which are then operands of the products without
// passing through shared memory:
//   P^T = 2^(s^T - logsumexp), dv = (keep P)^T dy / (1 - p), dk = scale dS^T q
// Bytes: k and v are read once, q and dy once per block of keys; dk and dv are written once.
#include "teratron/kernels/attention/fused_attention_tile.cuh"

namespace teratron::cuda {
namespace {

template <int D>
struct DkvTile {
  static constexpr int MT = D == 64 ? 2 : 1, NT = 4, keys = 128, queries = 8 * NT;
  static constexpr int warp_keys = 16 * MT, warps = keys / warp_keys, threads = 32 * warps,
                       blocks_per_sm = D == 64 ? 2 : 1;
  // Shared memory: keys and values; two stages of queries, output gradients, a window of the bias, and of
  // each query logsumexp, delta, row id and range.
  static constexpr int key_bytes = keys * D * 2, query_bytes = queries * D * 2,
                       bias_bytes = (queries + keys) * 4;
  static constexpr int rows_offset = 2 * query_bytes + bias_bytes, row_words = 6 * queries;
  static constexpr int stage_bytes = rows_offset + row_words * 4;
  static constexpr int shared_bytes = 2 * key_bytes + 2 * stage_bytes;
};

/// What a stage holds of its queries.
template <int queries>
struct StageRows {
  float logsumexp[queries], delta[queries];
  int64_t id[queries];
  KeyRange range[queries];
};

template <typename T, int D, bool drops, bool biased>
struct Dkv {
  using Tile = DkvTile<D>;
  using Rows = StageRows<Tile::queries>;
  static constexpr int MT = Tile::MT, NT = Tile::NT;

  const FusedAttentionArgs& args;
  const int first_key, group, batch, per_group, warp_key;  // warp_key: this warp's first
  unsigned char* const memory;
  const SharedAddress shared;
  int begin, end;  // tiles of queries that see any of the keys

  __device__ Dkv(const FusedAttentionArgs& all, unsigned char* dynamic)
      : args(all),
        first_key(blockIdx.x * Tile::keys),
        group(blockIdx.y),
        batch(blockIdx.z),
        per_group(all.heads / all.groups),
        warp_key(first_key + warp_index() * Tile::warp_keys),
        memory(dynamic),
        shared(shared_address(dynamic)) {
    static_assert(sizeof(Rows) == Tile::row_words * 4);
    const int tiles = (args.mask.queries + Tile::queries - 1) / Tile::queries;
    begin = first_tile(tiles, [&](int tile) { return last_range(tile).end > first_key; });
    end = first_tile(tiles, [&](int tile) { return first_range(tile).begin >= first_key + Tile::keys; });
  }

  /// The first tile of which `holds`, which stays true from there on.
  template <typename Predicate>
  __device__ static int first_tile(int tiles, Predicate&& holds) {
    int low = 0, high = tiles;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (holds(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  __device__ KeyRange first_range(int tile) const {
    return LaneQueries<1>::range_of(args, batch, tile * Tile::queries);
  }
  __device__ KeyRange last_range(int tile) const {
    return LaneQueries<1>::range_of(args, batch, min((tile + 1) * Tile::queries, args.mask.queries) - 1);
  }

  __device__ int stage_offset(int step) const { return 2 * Tile::key_bytes + step % 2 * Tile::stage_bytes; }
  __device__ const Rows& rows(int step) const {
    return *reinterpret_cast<const Rows*>(memory + stage_offset(step) + Tile::rows_offset);
  }

  /// Step `step` of all heads of the group, each with its tiles of queries.
  __device__ void load_stage(int step) const {
    const int head = group * per_group + step / (end - begin), tile = begin + step % (end - begin);
    const int first = tile * Tile::queries, queries = args.mask.queries;
    const SharedAddress stage = shared + stage_offset(step);
    load_tile<D, Tile::queries, Tile::threads>(
        SharedTile<D>{stage}, HeadRows<T>(args.q, batch, head, queries, args.channels), first);
    load_tile<D, Tile::queries, Tile::threads>(SharedTile<D>{stage + Tile::query_bytes},
                                               HeadRows<T>(args.dy, batch, head, queries, args.channels),
                                               first);
    if constexpr (biased) {
      load_bias<Tile::queries + Tile::keys, Tile::threads>(stage + 2 * Tile::query_bytes, args, head,
                                                           first_key - (first + Tile::queries - 1));
    }
    load_rows(step, head, first);
  }

  __device__ void load_rows(int step, int head, int first) const {
    const int thread = threadIdx.x, i = thread % Tile::queries, query = first + i;
    const bool valid = query < args.mask.queries;
    const int64_t row = LaneQueries<1>::score_row(args, batch, head, valid ? query : 0);
    const SharedAddress to = shared + stage_offset(step) + Tile::rows_offset;
    const int part = thread / Tile::queries;  // one warp each
    if (part == 0) cp_async_or_zero<4>(to + 4 * i, args.logsumexp + row, valid);
    if (part == 1) cp_async_or_zero<4>(to + 4 * (Tile::queries + i), args.delta + row, valid);
    if (drops && part == 2 && args.dropout.rows != nullptr) {
      const auto* const id = reinterpret_cast<const uint32_t*>(args.dropout.rows + row);
      cp_async_or_zero<4>(to + 4 * (2 * Tile::queries + 2 * i), id, valid);
      cp_async_or_zero<4>(to + 4 * (2 * Tile::queries + 2 * i + 1), id + 1, valid);
    }
    if (part == 3) {
      auto& there = *reinterpret_cast<Rows*>(memory + stage_offset(step) + Tile::rows_offset);
      there.range[i] = valid ? LaneQueries<1>::range_of(args, batch, query) : KeyRange{0, 0};
    }
  }

  /// Transposed add_bias().
  __device__ void add_bias_transposed(Accumulators<MT, NT>& s, int step) const {
    const float scale = args.scale * static_cast<float>(log2_e);
    const auto* window = reinterpret_cast<const float*>(memory + stage_offset(step) + 2 * Tile::query_bytes) +
                         7 + warp_index() * Tile::warp_keys + lane_row() - 2 * lane_pair();
#pragma unroll
    for (int k = 0; k < NT + 2 * MT - 1; ++k) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float bias = window[8 * k - c] * static_cast<float>(log2_e);
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r) {
          const int n = r + NT - 1 - k;
          if (n < 0 || n >= NT) continue;
          float& x = s[r / 2][n][r % 2 * 2 + c];
          x = fmaf(x, scale, bias);
        }
      }
    }
  }

  /// Hides the scores of queries that do not see the key. Rows without a query see none.
  __device__ void hide(Accumulators<MT, NT>& s, const Rows& rows) const {
    const KeyRange first = rows.range[0], last = rows.range[Tile::queries - 1];
    if (warp_key >= last.begin && warp_key + Tile::warp_keys <= min(first.end, last.end)) return;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const KeyRange seen = rows.range[8 * n + 2 * lane_pair() + c];
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r) {
          const int key = warp_key + 8 * r + lane_row();
          if (key < seen.begin || key >= seen.end) s[r / 2][n][r % 2 * 2 + c] = -INFINITY;
        }
      }
    }
  }

  /// The words of 8 queries and this warp's keys, transposed: half c of words[r] is of query 2 t + c and key
  /// 8 r + g.
  __device__ void draw(uint32_t (&words)[2 * MT], const Rows& rows, int n) const {
    const int query = 8 * n + lane_row();
    const int64_t id = rows.id[query];
    const PhiloxWords drawn =
        args.dropout.words(static_cast<uint64_t>(id) * static_cast<uint64_t>(args.dropout.draws),
                           warp_key / 32 * 4 + lane_pair());
#pragma unroll
    for (int r = 0; r < 2 * MT; ++r) {
      const bool upper = MT == 1 && warp_key % 32 != 0;
      words[r] = movmatrix_trans(upper ? drawn.word[(r + 2) % 4] : drawn.word[r]);
    }
  }

  /// s -> what is left of P^T after dropout, dp -> dS^T.
  __device__ void probabilities(Accumulators<MT, NT>& s, Accumulators<MT, NT>& dp, const Rows& rows) const {
    const bool capped = !biased && args.softcap > 0.0f;
    const float scale = biased ? 1.0f : (capped ? 1.0f : args.scale) * static_cast<float>(log2_e);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      uint32_t words[2 * MT] = {};
      if constexpr (drops) draw(words, rows, n);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int query = 8 * n + 2 * lane_pair() + c;
        const float logsumexp = rows.logsumexp[query], delta = rows.delta[query];
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r) {
          float &x = s[r / 2][n][r % 2 * 2 + c], &g = dp[r / 2][n][r % 2 * 2 + c];
          const float z = x, p = fast_exp2(fmaf(z, scale, -logsumexp));
          const bool kept = drops ? args.dropout.keeps(words[r], c) : true;
          const float factor = drops ? static_cast<float>(args.dropout.scale) : 1.0f;
          x = kept ? p : 0.0f;
          g = p * (kept ? fmaf(g, factor, -delta) : -delta);
          if (capped) g *= soft_cap_slope(z, args.softcap);
        }
      }
    }
  }

  __device__ void run() {
    const int keys = args.mask.keys, steps = per_group * (end - begin);
    load_tile<D, Tile::keys, Tile::threads>(
        SharedTile<D>{shared}, HeadRows<T>(args.k, batch, group, keys, args.channels), first_key);
    load_tile<D, Tile::keys, Tile::threads>(SharedTile<D>{shared + Tile::key_bytes},
                                            HeadRows<T>(args.v, batch, group, keys, args.channels),
                                            first_key);
    if (steps > 0) load_stage(0);
    cp_async_commit();
    const SharedOperand<D> k{{shared}, warp_key - first_key},
        v{{shared + Tile::key_bytes}, warp_key - first_key};
    Accumulators<MT, D / 8> dk, dv;
    clear<MT, D / 8>(dk);
    clear<MT, D / 8>(dv);
    for (int step = 0; step < steps; ++step) {
      cp_async_wait<0>();
      __syncthreads();
      if (step + 1 < steps) load_stage(step + 1);
      cp_async_commit();
      const SharedTile<D> q{shared + stage_offset(step)}, dy{q.address + Tile::query_bytes};
      Accumulators<MT, NT> s, dp;
      clear<MT, NT>(s);
      clear<MT, NT>(dp);
      multiply_transposed<T, D, MT, NT>(s, k, q);
      multiply_transposed<T, D, MT, NT>(dp, v, dy);
      if constexpr (biased) {
        add_bias_transposed(s, step);
      } else if (args.softcap > 0.0f) {
        soft_cap<MT, NT>(s, args.scale, args.softcap);
      }
      hide(s, rows(step));
      probabilities(s, dp, rows(step));
      multiply<T, D, MT, NT>(dv, s, dy);
      multiply<T, D, MT, NT>(dk, dp, q);
    }
    cp_async_wait<0>();
    float factor[MT][2];
    fill(factor, args.scale);
    store_rows<T, D, MT>(HeadRows<T>(args.dk, batch, group, keys, args.channels), warp_key, dk, factor);
    fill(factor, static_cast<float>(args.dropout.scale));
    store_rows<T, D, MT>(HeadRows<T>(args.dv, batch, group, keys, args.channels), warp_key, dv, factor);
  }
};

template <typename T, int D, bool drops, bool biased>
__global__ void __launch_bounds__(DkvTile<D>::threads, DkvTile<D>::blocks_per_sm)
    dkv_kernel(FusedAttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Dkv<T, D, drops, biased>(args, memory).run();
}

}  // namespace

void fused_attention_dkv(const FusedAttentionArgs& args, CUstream_st* stream) {
  with_fused_attention(
      args, [&]<typename T, int D, bool drops, bool biased>(
                T, std::integral_constant<int, D>, std::bool_constant<drops>, std::bool_constant<biased>) {
        using Tile = DkvTile<D>;
        const auto kernel = dkv_kernel<T, D, drops, biased>;
        allow_shared_memory(kernel, Tile::shared_bytes);
        const dim3 grid(static_cast<unsigned>(ceil_div(args.mask.keys, Tile::keys)), args.groups, args.batch);
        kernel<<<grid, Tile::threads, Tile::shared_bytes, stream>>>(args);
        check_launch("gradients of keys and values in fused attention");
      });
}

}  // namespace teratron::cuda
