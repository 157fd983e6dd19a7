// Persistent grouped GEMM for gradients of weights: per group a sum over its rows, in f32.
//
// A cluster of two blocks computes two tiles of 128 x 256, one above the other, which share x by TMA
// multicast. In a block one warp loads 32 rows of dy and x at a time; two consumer warpgroups multiply 64
// rows of the tile each and leave the product in shared memory. Box by box, while the next tile is
// multiplied, a further warp lets TMA write it or add it to what is there: at once, its bytes would hold up
// the loads. Rows after the end of the group are zeroed in shared memory.
//
// Bytes: the f32 gradient is written once, or read and written where it is added to. Measurements:
// docs/notes/experts.md.
#include "teratron/kernels/grouped_gemm/grouped_gemm_launch.cuh"

namespace teratron::cuda {
namespace grouped {
namespace {

constexpr int stages = 4, tile_k = 32;
constexpr int block_values = swizzle_values * tile_k;  // of a box: 64 columns of tile_k rows
constexpr int store_columns = 32;                      // f32 in a swizzled row
constexpr int store_boxes = tile_columns / store_columns;
constexpr int consumer_warps = 2 * warpgroup / 32;

struct Shared {
  bf16 dy[stages][tile_rows * tile_k];
  bf16 x[stages][tile_columns * tile_k];
  float product[store_boxes][tile_rows * store_columns];
  Barriers<stages> barriers;
  uint64_t product_full, product_empty;  // mbarriers
};

struct Params {
  CUtensorMap dy, x, dw;
  int groups, m, n;
  bool add;
  const int32_t* ends;
};

struct Tile {
  int group, begin, end;  // rows of dy and x
  int row, column;        // first of the gradient

  /// At least one: its rows are zeroed.
  __device__ int steps() const { return max((end - begin + tile_k - 1) / tile_k, 1); }
};

constexpr int pair_rows = tile_rows * blocks_per_cluster;

/// Iterates over the tiles of a block that are to be computed: all but those to which nothing is added.
class Tiles {
 public:
  __device__ explicit Tiles(const Params& p)
      : p_(p),
        across_((p.n + tile_columns - 1) / tile_columns),
        down_((p.m + pair_rows - 1) / pair_rows),
        step_rows_(static_cast<int>(gridDim.x) / blocks_per_cluster / across_),
        step_columns_(static_cast<int>(gridDim.x) / blocks_per_cluster % across_) {
    const int unit = static_cast<int>(blockIdx.x) / blocks_per_cluster;
    row_ = unit / across_;
    column_ = unit % across_;
    enter_group();
    find();
  }
  __device__ bool more() const { return group_ < p_.groups; }
  __device__ void next() {
    advance();
    find();
  }
  __device__ Tile tile() const {
    return {.group = group_,
            .begin = begin_,
            .end = end_,
            .row = row_ * pair_rows + static_cast<int>(cluster_rank()) * tile_rows,
            .column = column_ * tile_columns};
  }

 private:
  __device__ void advance() {
    row_ += step_rows_;
    column_ += step_columns_;
    if (column_ >= across_) {
      column_ -= across_;
      ++row_;
    }
    enter_group();
  }
  __device__ void enter_group() {
    for (; row_ >= down_; row_ -= down_) ++group_;
  }
  __device__ void find() {
    for (; more(); advance()) {
      begin_ = group_ == 0 ? 0 : __ldg(p_.ends + group_ - 1);
      end_ = __ldg(p_.ends + group_);
      if (end_ > begin_ || !p_.add) return;
    }
  }

  const Params& p_;
  int across_, down_;             // tile pairs of a group
  int step_rows_, step_columns_;  // from a tile pair to the block's next, without divisions
  int group_ = 0, row_, column_;  // of the tile pair
  int begin_ = 0, end_ = 0;
};

// Blocks of 64 columns of x that this block loads for both.
constexpr int own_blocks = tile_columns / swizzle_values / blocks_per_cluster;
__device__ int own_block(int i) {
  return i * blocks_per_cluster + static_cast<int>(cluster_rank());
}

/// The rows from `row` on that one step multiplies.
__device__ void load_rows(const Params& p, Shared& shared, const Tile& tile, int row, int stage) {
  const SharedAddress full = shared_address(&shared.barriers.full[stage]);
  mbarrier_arrive_expect_tx(full, sizeof shared.dy[0] + sizeof shared.x[0]);
#pragma unroll
  for (int i = 0; i < tile_rows / swizzle_values; ++i)
    tma_load(shared_address(shared.dy[stage] + i * block_values),
             Box{p.dy, tile.row + i * swizzle_values, row}, full);
#pragma unroll
  for (int i = 0; i < own_blocks; ++i) {
    const int block = own_block(i);
    tma_load_multicast(all_blocks, shared_address(shared.x[stage] + block * block_values),
                       Box{p.x, tile.column + block * swizzle_values, row}, full);
  }
}

__device__ void load_operands(const Params& p, Shared& shared) {
  PipelineState<stages> pipeline;
  for (Tiles tiles(p); tiles.more(); tiles.next()) {
    const Tile tile = tiles.tile();
    for (int step = 0; step < tile.steps(); ++step, pipeline.next()) {
      mbarrier_wait(shared_address(&shared.barriers.empty[pipeline.stage()]), pipeline.phase() ^ 1);
      load_rows(p, shared, tile, tile.begin + step * tile_k, pipeline.stage());
    }
  }
}

/// The product of a tile, which is stored box by box in the steps of the next tile, a few steps after the
/// gradients to which it is added have been prefetched into L2.
class Product {
 public:
  __device__ Product(const Params& p, Shared& shared) : p_(p), shared_(shared) {}
  __device__ void begin(const Tile& tile) {
    tile_ = tile;
    stored_ = prefetched_ = 0;
    full_ = false;
  }
  /// In a step of the next tile.
  __device__ void advance(int boxes) {
    if (p_.add)
      for (int i = 0; i < boxes && prefetched_ < store_boxes; ++i, ++prefetched_)
        if (is_inside(prefetched_)) tma_prefetch(box(prefetched_));
    if (stored_ == store_boxes) return;
    if (!full_) full_ = mbarrier_has_ended(shared_address(&shared_.product_full), phase_);
    if (full_) store(boxes);
  }
  /// Before the next product may be written.
  __device__ void finish() {
    if (!full_) mbarrier_wait(shared_address(&shared_.product_full), phase_);
    store(store_boxes);
    bulk_wait_read<0>();
    mbarrier_arrive(shared_address(&shared_.product_empty));
    phase_ ^= 1;
  }

 private:
  __device__ StackBox box(int i) const {
    return {p_.dw, tile_.column + i * store_columns, tile_.row, tile_.group};
  }
  __device__ bool is_inside(int i) const {
    return tile_.row < p_.m && tile_.column + i * store_columns < p_.n;
  }
  __device__ void store(int boxes) {
    for (int i = 0; i < boxes && stored_ < store_boxes; ++i, ++stored_)
      if (is_inside(stored_)) tma_store(box(stored_), shared_address(shared_.product[stored_]), p_.add);
    bulk_commit();
  }
  const Params& p_;
  Shared& shared_;
  Tile tile_;
  int stored_ = 0, prefetched_ = 0;
  bool full_ = false;
  uint32_t phase_ = 0;
};

/// Takes part in filling the stages, so as to keep pace.
__device__ void store_products(const Params& p, Shared& shared) {
  PipelineState<stages> pipeline;
  Product product(p, shared);
  bool first = true;
  for (Tiles tiles(p); tiles.more(); tiles.next(), first = false) {
    const Tile tile = tiles.tile();
    const int steps = tile.steps(), boxes = (store_boxes - 1) / max(steps - stages - 2, 1) + 1;
    for (int step = 0; step < steps; ++step, pipeline.next()) {
      mbarrier_wait(shared_address(&shared.barriers.empty[pipeline.stage()]), pipeline.phase() ^ 1);
      mbarrier_arrive(shared_address(&shared.barriers.full[pipeline.stage()]));
      if (!first) product.advance(boxes);
    }
    if (!first) product.finish();
    product.begin(tile);
  }
  if (!first) product.finish();
}

/// Zeroes the rows of a box from `rows` on.
__device__ void zero_rows(bf16* box, int rows) {
  auto* const packs = reinterpret_cast<uint4*>(box);
  constexpr int row_packs = swizzle_values / 8;
  for (int i = rows * row_packs + static_cast<int>(threadIdx.x) % warpgroup; i < tile_k * row_packs;
       i += warpgroup)
    packs[i] = uint4{};
}

/// By both consumers: zeroes the rows of a stage from `rows` on, which are those of another group.
__device__ void zero_rest(Shared& shared, int stage, int rows, int half) {
  constexpr int blocks = tile_columns / swizzle_values / 2;
  zero_rows(shared.dy[stage] + half * block_values, rows);
  for (int i = 0; i < blocks; ++i) zero_rows(shared.x[stage] + (half * blocks + i) * block_values, rows);
  fence_proxy_async();
  named_barrier_sync(3, 2 * warpgroup);
}

/// The product of 64 rows of a tile.
__device__ void multiply(const Tile& tile, Shared& shared, int half, PipelineState<stages>& pipeline,
                         float (&d)[tile_columns / 2]) {
  constexpr uint32_t step_bytes = 16 * 128, block_bytes = block_values * sizeof(bf16);
  const uint64_t first_a =
                     mn_major_descriptor(shared_address(shared.dy[0] + half * block_values), block_bytes),
                 first_b = mn_major_descriptor(shared_address(shared.x[0]), block_bytes);
  int last = 0;
  for (int step = 0; step < tile.steps(); ++step, pipeline.next()) {
    const int s = pipeline.stage(), rows = tile.end - tile.begin - step * tile_k;
    mbarrier_wait(shared_address(&shared.barriers.full[s]), pipeline.phase());
    if (rows < tile_k) zero_rest(shared, s, rows, half);
    const uint64_t a = advance_descriptor(first_a, s * sizeof shared.dy[0]),
                   b = advance_descriptor(first_b, s * sizeof shared.x[0]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      wgmma<true, true>(d, advance_descriptor(a, i * step_bytes), advance_descriptor(b, i * step_bytes),
                        step + i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) shared.barriers.release(last);
    last = s;
  }
  wgmma_wait<0>();
  wgmma_fence_registers(d);
  shared.barriers.release(last);
}

__device__ void store_pair(SharedAddress to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

/// Stores the accumulators as TMA reads them: boxes of 32 columns, whose packs of four are swizzled. Odd rows
/// store columns 16 further or back, so that the four rows of half a warp lie in different banks.
__device__ void store_product(Shared& shared, int half, const float (&d)[tile_columns / 2]) {
  const int warp = threadIdx.x % warpgroup / 32, lane = threadIdx.x % 32;
  const int row = half * warpgroup_rows + 16 * warp + lane / 4;
  const bool odd = row % 2 == 1;
  const SharedAddress first = shared_address(shared.product[0] + row * store_columns);
#pragma unroll
  for (int j = 0; j < tile_columns / 8; ++j) {
    const int eight = j % 4 ^ (odd ? 2 : 0), pack = (2 * eight + lane % 4 / 2) ^ (row % 8);
    const SharedAddress to =
        first + (4 * pack + 2 * (lane % 2)) * sizeof(float) + j / 4 * sizeof shared.product[0];
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      const float *const even_rows = d + 4 * j + c, *const odd_rows = d + 4 * (j ^ 2) + c;
      store_pair(to + c * 4 * store_columns * sizeof(float), odd ? odd_rows[0] : even_rows[0],
                 odd ? odd_rows[1] : even_rows[1]);
    }
  }
}

__device__ void compute_tiles(const Params& p, Shared& shared, int half) {
  PipelineState<stages> pipeline;
  uint32_t phase = 1;
  for (Tiles tiles(p); tiles.more(); tiles.next(), phase ^= 1) {
    float d[tile_columns / 2];
    multiply(tiles.tile(), shared, half, pipeline, d);
    mbarrier_wait(shared_address(&shared.product_empty), phase);
    store_product(shared, half, d);
    fence_proxy_async();
    __syncwarp();
    if (elect_one()) mbarrier_arrive(shared_address(&shared.product_full));
    __syncwarp();
  }
}

__global__ void __launch_bounds__(threads, 1) kernel(const __grid_constant__ Params p) {
  if constexpr (has_sm_90a) {
    Shared& shared = shared_memory<Shared>();
    if (threadIdx.x == 0) {
      mbarrier_init(shared_address(&shared.product_full), consumer_warps);
      mbarrier_init(shared_address(&shared.product_empty), 1);
      shared.barriers.init(2);
    }
    cluster_sync();
    if (threadIdx.x < helper_threads) {
      setmaxnreg_dec<helper_registers>();
      const int warp = warp_index();
      if (warp < 2 && elect_one()) {
        if (warp == 0)
          load_operands(p, shared);
        else
          store_products(p, shared);
      }
    } else {
      setmaxnreg_inc<consumer_registers>();
      compute_tiles(p, shared, consumer());
    }
    cluster_sync();  // no block exits while another sends to it
  }
}

CUtensorMap gradient_map(const GroupedWeightGradientArgs& args) {
  return make_tensor_map<3>({.data = args.dw,
                             .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                             .sizes = {static_cast<uint64_t>(args.n), static_cast<uint64_t>(args.m),
                                       static_cast<uint64_t>(args.groups.count)},
                             .strides = {args.n * sizeof(float), args.dw_stride * sizeof(float)},
                             .box = {store_columns, tile_rows, 1}});
}

}  // namespace
}  // namespace grouped

void grouped_weight_gradient(const GroupedWeightGradientArgs& args, CUstream_st* stream) {
  using namespace grouped;
  const Params p{.dy = matrix_map(args.dy, args.groups.rows, args.m, tile_k),
                 .x = matrix_map(args.x, args.groups.rows, args.n, tile_k),
                 .dw = gradient_map(args),
                 .groups = static_cast<int>(args.groups.count),
                 .m = static_cast<int>(args.m),
                 .n = static_cast<int>(args.n),
                 .add = args.add,
                 .ends = args.groups.ends};
  launch<Shared>(kernel, p, stream);
}

}  // namespace teratron::cuda
