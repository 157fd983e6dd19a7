// Persistent grouped GEMMs of FP8 operands, all of them k-major.
//
// A cluster of two blocks computes two tiles, one above the other, which share operand b by TMA multicast. In
// a block one producer warp loads operands, two consumer warpgroups multiply 64 rows each. Tiles are numbered
// group by group; each block finds its tiles from the ends of the groups.
//
// Tensor cores keep few bits of sums of FP8 products. Activations are summed there, in tiles of 128 x 256; of
// gradients, in tiles of 128 x 128, every 128 products are added in f32.
//
// Measurements: docs/notes/experts.md.
#include "teratron/kernels/fp8/launchers.h"
#include "teratron/kernels/fp8/wgmma_fp8.cuh"
#include "teratron/kernels/grouped_gemm/grouped_gemm_launch.cuh"

namespace teratron::cuda {
namespace grouped {
namespace {

using Product = Fp8GroupedProduct;

constexpr int tile_k = 128;  // bytes of a swizzled row
constexpr int wgmma_k = 32;
constexpr int pair_rows = tile_rows * blocks_per_cluster;

template <Product kind, bool e5m2>
struct Config {
  static constexpr Product product = kind;
  static constexpr bool a_e5m2 = e5m2, fast = kind == Product::forward;
  static constexpr int columns = fast ? 256 : 128, stages = fast ? 4 : 6;

  struct Shared {
    uint8_t a[stages][tile_rows * tile_k];
    uint8_t b[stages][columns * tile_k];
    int ends[fp8_max_groups];
    Barriers<stages> barriers;
  };
};

struct Params {
  CUtensorMap a, b;
  int groups, rows, n, k;  // rows: of the weight gradient
  const int32_t *ends, *padded_ends;
  const float *a_scale_inv, *b_scale_inv;
  void* out;
  int64_t out_stride;
  bool add;
};

struct Tile {
  int group;
  int row, end;  // the first row; the end of the group's rows
  int column;    // the first
  int k, begin_k;

  /// Rows of the group in a half of the tile; may be negative.
  __device__ int half_rows(int half) const { return end - row - half * warpgroup_rows; }
};

/// Iterates over the tiles of a block. A unit is the two tiles of a cluster.
template <typename T>
class Tiles {
 public:
  __device__ Tiles(const Params& p, const int* ends)
      : p_(p),
        ends_(ends),
        across_((p.n + T::columns - 1) / T::columns),
        unit_(static_cast<int>(blockIdx.x) / blocks_per_cluster) {
    enter_group(0);
    find();
  }
  __device__ bool more() const { return group_ < p_.groups; }
  __device__ void next() {
    unit_ += static_cast<int>(gridDim.x) / blocks_per_cluster;
    find();
  }
  __device__ Tile tile() const {
    const int row = unit_ / across_ * pair_rows + static_cast<int>(cluster_rank()) * tile_rows;
    Tile tile{.group = group_, .row = row, .end = p_.rows, .column = unit_ % across_ * T::columns};
    if (sums_rows) {
      tile.k = end_ - begin_;
      tile.begin_k = group_ == 0 ? 0 : __ldg(p_.padded_ends + group_ - 1);
    } else {
      tile.row += begin_;
      tile.end = end_;
      tile.k = p_.k;
      tile.begin_k = 0;
    }
    return tile;
  }

 private:
  static constexpr bool sums_rows = T::product == Product::weight_gradient;

  __device__ void enter_group(int group) {
    group_ = group;
    if (!more()) return;
    begin_ = group == 0 ? 0 : ends_[group - 1];
    end_ = ends_[group];
    const bool adds_nothing = sums_rows && p_.add && end_ == begin_;
    const int rows = sums_rows ? p_.rows : end_ - begin_;
    units_ = adds_nothing ? 0 : (rows + pair_rows - 1) / pair_rows * across_;
  }
  /// Advances to the group that contains the unit.
  __device__ void find() {
    while (more() && unit_ >= units_) {
      unit_ -= units_;
      enter_group(group_ + 1);
    }
  }

  const Params& p_;
  const int* ends_;
  int across_, unit_;  // tile columns; index of the unit in the group
  int group_ = 0, begin_ = 0, end_ = 0, units_ = 0;
};

template <typename T>
__device__ void load_operands(const Params& p, typename T::Shared& shared) {
  constexpr int half_columns = T::columns / blocks_per_cluster;
  const int offset = static_cast<int>(cluster_rank()) * half_columns;
  PipelineState<T::stages> pipeline;
  for (Tiles<T> tiles(p, shared.ends); tiles.more(); tiles.next()) {
    const Tile tile = tiles.tile();
    const int b_row = tile.column + offset + (T::product == Product::forward ? tile.group * p.n : 0);
    const int b_k = T::product == Product::input_gradient ? tile.group * p.k : tile.begin_k;
    for (int k = 0; k < tile.k; k += tile_k, pipeline.next()) {
      const int s = pipeline.stage();
      mbarrier_wait(shared_address(&shared.barriers.empty[s]), pipeline.phase() ^ 1);
      const SharedAddress full = shared_address(&shared.barriers.full[s]);
      mbarrier_arrive_expect_tx(full, sizeof shared.a[0] + sizeof shared.b[0]);
      tma_load(shared_address(shared.a[s]), Box{p.a, tile.begin_k + k, tile.row}, full);
      tma_load_multicast(all_blocks, shared_address(shared.b[s] + offset * tile_k), Box{p.b, b_k + k, b_row},
                         full);
    }
  }
}

/// d (+)= one stage.
template <typename T>
__device__ void multiply_stage(float (&d)[T::columns / 2], uint64_t a, uint64_t b, bool add) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < tile_k / wgmma_k; ++i)
    wgmma_fp8<T::a_e5m2>(d, advance_descriptor(a, i * wgmma_k), advance_descriptor(b, i * wgmma_k),
                         add || i > 0);
  wgmma_commit();
}

/// The product of 64 rows of a tile.
template <typename T>
__device__ void multiply(const Tile& tile, typename T::Shared& shared, int half,
                         PipelineState<T::stages>& pipeline, float (&sum)[T::columns / 2]) {
  const uint64_t first_a = k_major_descriptor(shared_address(shared.a[0] + half * warpgroup_rows * tile_k)),
                 first_b = k_major_descriptor(shared_address(shared.b[0]));
  int last = 0;
  for (int k = 0; k < tile.k; k += tile_k, pipeline.next()) {
    const int s = pipeline.stage();
    mbarrier_wait(shared_address(&shared.barriers.full[s]), pipeline.phase());
    const uint64_t a = advance_descriptor(first_a, s * sizeof shared.a[0]),
                   b = advance_descriptor(first_b, s * sizeof shared.b[0]);
    if constexpr (T::fast) {
      multiply_stage<T>(sum, a, b, k > 0);
      wgmma_wait<1>();
      if (k > 0) shared.barriers.release(last);
      last = s;
    } else {
      float d[T::columns / 2];
      multiply_stage<T>(d, a, b, false);
      wgmma_wait<0>();
      wgmma_fence_registers(d);
      shared.barriers.release(s);
#pragma unroll
      for (int i = 0; i < T::columns / 2; ++i) sum[i] += d[i];
    }
  }
  if constexpr (T::fast) {
    wgmma_wait<0>();
    wgmma_fence_registers(sum);
    shared.barriers.release(last);
  }
}

/// Instead of multiply(), for half tiles without rows.
template <typename T>
__device__ void skip(const Tile& tile, typename T::Shared& shared, PipelineState<T::stages>& pipeline) {
  for (int k = 0; k < tile.k; k += tile_k, pipeline.next()) {
    mbarrier_wait(shared_address(&shared.barriers.full[pipeline.stage()]), pipeline.phase());
    shared.barriers.release(pipeline.stage());
  }
}

__device__ void store(bf16* to, float2 x, bool /*add*/) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __float22bfloat162_rn(x);
}
__device__ void store(float* to, float2 x, bool add) {
  if (add) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
  } else {
    *reinterpret_cast<float2*>(to) = x;
  }
}

/// The rows of the group in a half tile.
template <typename T>
__device__ void store_product(const Params& p, const Tile& tile, int half,
                              const float (&sum)[T::columns / 2]) {
  using Out = std::conditional_t<T::product == Product::weight_gradient, float, bf16>;
  const int warp = threadIdx.x % warpgroup / 32, lane = threadIdx.x % 32;
  const int row = half * warpgroup_rows + 16 * warp + lane / 4, column = tile.column + 2 * (lane % 4);
  const float scale = __ldg(p.a_scale_inv) * __ldg(p.b_scale_inv);
  Out* const group = static_cast<Out*>(p.out) + tile.group * p.out_stride;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (tile.row + row + 8 * c >= tile.end) continue;
    Out* const to = group + int64_t{tile.row + row + 8 * c} * p.n + column;
#pragma unroll
    for (int j = 0; j < T::columns / 8; ++j) {
      if (column + 8 * j < p.n)
        store(to + 8 * j, {sum[4 * j + 2 * c] * scale, sum[4 * j + 2 * c + 1] * scale}, p.add);
    }
  }
}

template <typename T>
__device__ void compute_tiles(const Params& p, typename T::Shared& shared, int half) {
  PipelineState<T::stages> pipeline;
  for (Tiles<T> tiles(p, shared.ends); tiles.more(); tiles.next()) {
    const Tile tile = tiles.tile();
    if (tile.half_rows(half) <= 0) {
      skip<T>(tile, shared, pipeline);
      continue;
    }
    float sum[T::columns / 2] = {};
    if (tile.k > 0) multiply<T>(tile, shared, half, pipeline, sum);
    store_product<T>(p, tile, half, sum);
    __syncwarp();  // wgmma needs whole warps
  }
}

template <typename T>
__global__ void __launch_bounds__(threads, 1) fp8_kernel(const __grid_constant__ Params p) {
  if constexpr (has_sm_90a) {
    auto& shared = shared_memory<typename T::Shared>();
    if (threadIdx.x == 0) shared.barriers.init();
    for (int i = static_cast<int>(threadIdx.x); i < p.groups; i += threads) shared.ends[i] = p.ends[i];
    cluster_sync();
    if (threadIdx.x < helper_threads) {
      setmaxnreg_dec<helper_registers>();
      if (warp_index() == 0 && elect_one()) load_operands<T>(p, shared);
    } else {
      setmaxnreg_inc<consumer_registers>();
      compute_tiles<T>(p, shared, consumer());
    }
    cluster_sync();  // no block exits while another sends to it
  }
}

/// Boxes of 128 columns.
CUtensorMap fp8_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  return make_tensor_map<2>({.data = data,
                             .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                             .sizes = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                             .strides = {static_cast<uint64_t>(columns)},
                             .box = {tile_k, static_cast<uint32_t>(box_rows)}});
}

template <typename T>
void launch_gemm(const Fp8GroupedGemmArgs& args, CUstream_st* stream) {
  const int64_t groups = args.groups.count;
  const int64_t b_rows = T::product == Product::forward ? groups * args.n : args.n;
  const int64_t b_columns = T::product == Product::input_gradient ? groups * args.k : args.k;
  const Params p{.a = fp8_map(args.a, args.rows, args.k, tile_rows),
                 .b = fp8_map(args.b, b_rows, b_columns, T::columns / blocks_per_cluster),
                 .groups = static_cast<int>(groups),
                 .rows = static_cast<int>(args.rows),
                 .n = static_cast<int>(args.n),
                 .k = static_cast<int>(args.k),
                 .ends = args.groups.ends,
                 .padded_ends = args.groups.padded_ends,
                 .a_scale_inv = args.a_scale_inv,
                 .b_scale_inv = args.b_scale_inv,
                 .out = args.out,
                 .out_stride = args.out_stride,
                 .add = args.add};
  launch<typename T::Shared>(fp8_kernel<T>, p, stream);
}

template <Product product>
void launch_gemm_of(const Fp8GroupedGemmArgs& args, CUstream_st* stream) {
  return args.a_format == Fp8Format::e5m2 ? launch_gemm<Config<product, true>>(args, stream)
                                          : launch_gemm<Config<product, false>>(args, stream);
}

}  // namespace
}  // namespace grouped

bool has_fp8_grouped_gemm() {
  using namespace grouped;
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "fp8_grouped_gemm");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "fp8_grouped_gemm");
  if (major != 9) return false;
  static const bool built = is_built(fp8_kernel<Config<Product::forward, false>>) &&
                            is_built(fp8_kernel<Config<Product::input_gradient, true>>) &&
                            is_built(fp8_kernel<Config<Product::weight_gradient, true>>);
  return built;
}

void fp8_grouped_gemm(const Fp8GroupedGemmArgs& args, CUstream_st* stream) {
  using namespace grouped;
  switch (args.product) {
    case Product::forward:
      return launch_gemm<Config<Product::forward, false>>(args, stream);
    case Product::input_gradient:
      return launch_gemm_of<Product::input_gradient>(args, stream);
    case Product::weight_gradient:
      return launch_gemm_of<Product::weight_gradient>(args, stream);
  }
}

}  // namespace teratron::cuda
