// Persistent grouped GEMM: each row is multiplied by the weight of its group.
//
// A cluster of two blocks computes two tiles of 128 x 256 at a time: one above the other, which share the
// weight by TMA multicast; or, where a group has at most 128 rows left, beside each other, which share the
// rows. Half tiles (64 rows) without a row of the group are not multiplied. Tiles are numbered group by
// group; each block finds its tiles from the ends of the groups in shared memory. In a block one producer
// warp loads operands, two consumer warpgroups multiply 64 rows each, and a warp for each of these copies
// the rounded product to global memory while the next tile is multiplied.
//
// Bytes: rows are read per 256 columns, weights per 256 rows of a group; the product is written once.
// Measurements: docs/notes/experts.md.
#include "teratron/kernels/grouped_gemm/grouped_gemm_launch.cuh"

namespace teratron::cuda {
namespace grouped {
namespace {

constexpr int stages = 3, tile_k = 64;

struct Shared {
  bf16 a[stages][tile_rows * tile_k];
  bf16 b[stages][tile_columns * tile_k];
  bf16 product[tile_rows * (tile_columns + 8)];
  int ends[grouped_gemm_max_groups];
  Barriers<stages> barriers;
};

struct Params {
  CUtensorMap a, b;
  int groups, n, k;
  const int32_t* ends;
  bf16* out;
};

template <bool mn_major>
struct Config {
  static constexpr bool b_mn_major = mn_major;
  // For store_product().
  static constexpr int tile_columns = grouped::tile_columns, pitch = tile_columns + 8;
  using Shared = grouped::Shared;
};

struct Tile {
  int group, row, end, column;  // first row and column; the end of the group's rows
  bool shares_b;                // of the cluster's tiles; else they share a

  /// Rows of the group in a half of the tile; may be negative.
  __device__ int half_rows(int half) const { return end - row - half * warpgroup_rows; }
};

/// Iterates over the tiles of a block. A unit is the two tiles of a cluster.
class Tiles {
 public:
  __device__ Tiles(const Params& p, const int* ends)
      : ends_(ends),
        groups_(p.groups),
        across_(ceil_of(p.n, tile_columns)),
        unit_(blockIdx.x / blocks_per_cluster) {
    enter_group(0);
    find();
  }
  __device__ bool more() const { return group_ < groups_; }
  __device__ void next() {
    unit_ += gridDim.x / blocks_per_cluster;
    find();
  }
  __device__ Tile tile() const {
    const int rank = static_cast<int>(cluster_rank());
    Tile tile{
        .group = group_, .row = begin_, .end = end_, .column = 0, .shares_b = unit_ < paired_ * across_};
    if (tile.shares_b) {
      // Strips of eight tile columns, each row by row, so that concurrent blocks share operands in L2.
      const uint32_t strip = unit_ / (strip_columns * paired_);
      const uint32_t width = min(strip_columns, across_ - strip * strip_columns);
      const uint32_t within = unit_ - strip * strip_columns * paired_;
      tile.row += static_cast<int>(within / width) * pair_rows + rank * tile_rows;
      tile.column = static_cast<int>(strip * strip_columns + within % width) * tile_columns;
    } else {
      tile.row += static_cast<int>(paired_) * pair_rows;
      tile.column = (static_cast<int>(unit_ - paired_ * across_) * blocks_per_cluster + rank) * tile_columns;
    }
    return tile;
  }

 private:
  static constexpr int pair_rows = tile_rows * blocks_per_cluster;
  static constexpr uint32_t strip_columns = 8;
  __device__ static uint32_t ceil_of(int size, int of) { return static_cast<uint32_t>((size + of - 1) / of); }

  __device__ void enter_group(int group) {
    group_ = group;
    if (!more()) return;
    begin_ = group == 0 ? 0 : ends_[group - 1];
    end_ = ends_[group];
    const int rows = end_ - begin_;
    paired_ = static_cast<uint32_t>((rows + tile_rows - 1) / pair_rows);
    units_ = paired_ * across_;
    if (rows > static_cast<int>(paired_) * pair_rows) units_ += (across_ + 1) / 2;
  }
  /// Advances to the group that contains the unit.
  __device__ void find() {
    while (more() && unit_ >= units_) {
      unit_ -= units_;
      enter_group(group_ + 1);
    }
  }

  const int* ends_;
  int groups_, group_ = 0, begin_ = 0, end_ = 0;
  uint32_t across_, unit_;           // tile columns; index of the unit in the group
  uint32_t paired_ = 0, units_ = 0;  // pairs of tile rows, and units, of the group
};

template <typename T>
__device__ void load_operands(const Params& p, Shared& shared) {
  const int rank = static_cast<int>(cluster_rank());
  PipelineState<stages> pipeline;
  for (Tiles tiles(p, shared.ends); tiles.more(); tiles.next()) {
    const Tile tile = tiles.tile();
    for (int k = 0; k < p.k; k += tile_k, pipeline.next()) {
      const int s = pipeline.stage();
      mbarrier_wait(shared_address(&shared.barriers.empty[s]), pipeline.phase() ^ 1);
      const SharedAddress full = shared_address(&shared.barriers.full[s]);
      mbarrier_arrive_expect_tx(full, sizeof shared.a[0] + sizeof shared.b[0]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int offset = half * warpgroup_rows;
        const SharedAddress to = shared_address(shared.a[s] + offset * tile_k);
        const Box box{p.a, k, tile.row + offset};
        if (tile.shares_b) {
          tma_load(to, box, full);
        } else if (half == rank) {
          tma_load_multicast(all_blocks, to, box, full);
        }
      }
      constexpr int box_columns = T::b_mn_major ? swizzle_values : tile_columns / 2;
#pragma unroll
      for (int i = 0; i < tile_columns / box_columns; ++i) {
        const int column = tile.column + i * box_columns;
        const SharedAddress to = shared_address(shared.b[s] + i * box_columns * tile_k);
        const StackBox box =
            T::b_mn_major ? StackBox{p.b, column, k, tile.group} : StackBox{p.b, k, column, tile.group};
        if (!tile.shares_b) {
          tma_load(to, box, full);
        } else if (i % blocks_per_cluster == rank) {
          tma_load_multicast(all_blocks, to, box, full);
        }
      }
    }
  }
}

/// The product of 64 rows of a tile.
template <typename T>
__device__ void multiply(const Params& p, Shared& shared, int half, PipelineState<stages>& pipeline,
                         float (&d)[tile_columns / 2]) {
  constexpr uint32_t step_a = 16 * sizeof(bf16), step_b = T::b_mn_major ? 16 * 128 : step_a;
  const uint64_t first_a = k_major_descriptor(shared_address(shared.a[0] + half * warpgroup_rows * tile_k)),
                 first_b = T::b_mn_major ? mn_major_descriptor(shared_address(shared.b[0]),
                                                               tile_k * swizzle_values * sizeof(bf16))
                                         : k_major_descriptor(shared_address(shared.b[0]));
  int last = 0;
  for (int k = 0; k < p.k; k += tile_k, pipeline.next()) {
    const int s = pipeline.stage();
    mbarrier_wait(shared_address(&shared.barriers.full[s]), pipeline.phase());
    const uint64_t a = advance_descriptor(first_a, s * sizeof shared.a[0]),
                   b = advance_descriptor(first_b, s * sizeof shared.b[0]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i)
      wgmma<T::b_mn_major>(d, advance_descriptor(a, i * step_a), advance_descriptor(b, i * step_b),
                           k + i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0) shared.barriers.release(last);
    last = s;
  }
  wgmma_wait<0>();
  wgmma_fence_registers(d);
  shared.barriers.release(last);
}

/// Instead of multiply(), for half tiles without rows.
__device__ void skip(const Params& p, Shared& shared, PipelineState<stages>& pipeline) {
  for (int k = 0; k < p.k; k += tile_k, pipeline.next()) {
    mbarrier_wait(shared_address(&shared.barriers.full[pipeline.stage()]), pipeline.phase());
    shared.barriers.release(pipeline.stage());
  }
}

template <typename T>
__device__ void compute_tiles(const Params& p, Shared& shared, int half) {
  PipelineState<stages> pipeline;
  bool first = true;
  for (Tiles tiles(p, shared.ends); tiles.more(); tiles.next()) {
    if (tiles.tile().half_rows(half) <= 0) {
      skip(p, shared, pipeline);
      continue;
    }
    float d[tile_columns / 2];
    multiply<T>(p, shared, half, pipeline, d);
    if (!first) named_barrier_sync(fused_gemm::empty_barrier(half), warpgroup + 32);
    fused_gemm::store_product<T>(shared, half, d);
    fence_proxy_async();
    named_barrier_arrive(fused_gemm::full_barrier(half), warpgroup + 32);
    first = false;
  }
}

/// By one warp: the rows of the group in a half tile.
template <typename T>
__device__ void copy_tiles(const Params& p, Shared& shared, int half) {
  const int lane = threadIdx.x % 32;
  for (Tiles tiles(p, shared.ends); tiles.more(); tiles.next()) {
    const Tile tile = tiles.tile();
    const int rows = min(tile.half_rows(half), warpgroup_rows),
              columns = min(p.n - tile.column, tile_columns);
    if (rows <= 0) continue;
    named_barrier_sync(fused_gemm::full_barrier(half), warpgroup + 32);
    for (int row = lane; row < rows && columns > 0; row += 32) {
      const int in_tile = half * warpgroup_rows + row;
      bulk_store(p.out + int64_t{tile.row + in_tile} * p.n + tile.column,
                 shared_address(shared.product + in_tile * T::pitch), columns * sizeof(bf16));
    }
    bulk_commit();
    bulk_wait_read<0>();
    __syncwarp();
    named_barrier_arrive(fused_gemm::empty_barrier(half), warpgroup + 32);
  }
}

template <typename T>
__global__ void __launch_bounds__(threads, 1) kernel(const __grid_constant__ Params p) {
  if constexpr (has_sm_90a) {
    Shared& shared = shared_memory<Shared>();
    if (threadIdx.x == 0) shared.barriers.init();
    for (int i = static_cast<int>(threadIdx.x); i < p.groups; i += threads) shared.ends[i] = p.ends[i];
    cluster_sync();
    if (threadIdx.x < helper_threads) {
      setmaxnreg_dec<helper_registers>();
      const int warp = warp_index();
      if (warp == 0) {
        if (elect_one()) load_operands<T>(p, shared);
      } else if (warp == 1 || warp == 2) {
        copy_tiles<T>(p, shared, warp - 1);
      }
    } else {
      setmaxnreg_inc<consumer_registers>();
      compute_tiles<T>(p, shared, consumer());
    }
    cluster_sync();  // no block exits while another sends to it
  }
}

template <typename T>
void launch_gemm(const GroupedGemmArgs& args, CUstream_st* stream) {
  const std::array<int64_t, 3> sizes = T::b_mn_major
                                           ? std::array<int64_t, 3>{args.groups.count, args.k, args.n}
                                           : std::array<int64_t, 3>{args.groups.count, args.n, args.k};
  const int box_rows = T::b_mn_major ? tile_k : tile_columns / 2;
  const Params p{.a = matrix_map(args.x, args.groups.rows, args.k, warpgroup_rows),
                 .b = stack_map(args.w, sizes, args.w_stride, {box_rows, swizzle_values}),
                 .groups = static_cast<int>(args.groups.count),
                 .n = static_cast<int>(args.n),
                 .k = static_cast<int>(args.k),
                 .ends = args.groups.ends,
                 .out = static_cast<bf16*>(args.out)};
  launch<Shared>(kernel<T>, p, stream);
}

}  // namespace
}  // namespace grouped

bool has_grouped_gemm() {
  using namespace grouped;
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "grouped_gemm");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "grouped_gemm");
  if (major != 9) return false;
  static const bool built = is_built(kernel<Config<false>>) && is_built(kernel<Config<true>>);
  return built;
}

void grouped_gemm(const GroupedGemmArgs& args, CUstream_st* stream) {
  using namespace grouped;
  return args.w_mn_major ? launch_gemm<Config<true>>(args, stream) : launch_gemm<Config<false>>(args, stream);
}

}  // namespace teratron::cuda
