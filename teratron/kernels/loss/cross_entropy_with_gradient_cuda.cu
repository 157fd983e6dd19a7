// Loss and gradient in one pass over the logits. A row is stored in the shared memory of a cluster of blocks,
// which exchange its maximum and its sum. Each block loads its slice with one bulk copy; while it waits,
// others on the SM compute.
//   M = max_j z_j, S = sum_j exp(z_j - M), loss = log S + M - z_target,
//   z_j <- exp(z_j - M) / S - [j = target]
// Bytes: z is read once and written once. One H200: 0.94 to 0.95 of a copy.
#include "teratron/kernels/common/hopper.cuh"
#include "teratron/kernels/common/launch_fault.h"
#include "teratron/kernels/loss/launchers.h"

namespace teratron::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int threads = 256, N = pack_size<bf16>, max_blocks = 8;
constexpr int slice_bytes = 110 << 10;  // two per SM
constexpr int static_bytes = 1 << 10;   // upper bound of static shared memory
constexpr float minus_infinity = -INFINITY;

struct Params {
  VocabShape shape;
  CrossEntropyWithGradientArgs args;
};

int64_t packs_per_slice(const VocabShape& shape, int64_t blocks) {
  return ceil_div(shape.width / N, blocks);
}

/// Blocks per row; 0 if it is too long.
int64_t blocks_per_row(const VocabShape& shape) {
  int64_t blocks = 1;
  while (blocks <= max_blocks && packs_per_slice(shape, blocks) * 16 > slice_bytes) blocks *= 2;
  return blocks <= max_blocks ? blocks : 0;
}

/// All-gather of one float per block of the cluster.
struct ClusterReduce {
  uint64_t barrier;
  float values[max_blocks];

  __device__ void open(int blocks) {
    hopper::mbarrier_init(shared_address(&barrier), 1);
    hopper::fence_mbarrier_init();
    hopper::mbarrier_arrive_expect_tx(shared_address(&barrier),
                                      static_cast<uint32_t>(blocks * sizeof(float)));
  }
  /// `x` is the same in all threads. All blocks must have called open().
  template <typename Merge>
  __device__ float operator()(float x, int blocks, Merge&& merge) {
    if (blocks == 1) return x;
    if (static_cast<int>(threadIdx.x) < blocks) {
      hopper::st_async(shared_address(&values[hopper::cluster_rank()]), x, shared_address(&barrier),
                       threadIdx.x);
    }
    hopper::mbarrier_wait(shared_address(&barrier), 0);
    x = values[0];
    for (int b = 1; b < blocks; ++b) x = merge(x, values[b]);
    return x;
  }
};

/// A block's slice of a row. Columns are relative to its first.
struct RowSlice {
  uint4* packs;  // in shared memory
  bf16* row;     // their source
  int count;     // packs
  int columns;   // logical columns from here to the row's end; the slice may have fewer
  int target;    // -1: in another slice
  bool writes_loss;

  __device__ RowSlice(const Params& p, uint4* memory, int blocks) : packs(memory) {
    const int all = static_cast<int>(p.shape.width) / N, per = (all + blocks - 1) / blocks;
    const int rank = static_cast<int>(hopper::cluster_rank()), first = rank * per * N;
    count = min(per, all - rank * per);
    row = static_cast<bf16*>(p.args.logits) + row_index(blocks) * p.shape.width + first;
    columns = static_cast<int>(p.shape.columns) - first;
    const int64_t column = p.args.targets[row_index(blocks)] - p.shape.first;
    const bool logical = column >= 0 && column < p.shape.columns;
    const int64_t here = column - first;
    target = logical && here >= 0 && here < count * N ? static_cast<int>(here) : -1;
    writes_loss = logical ? target >= 0 : rank == 0;
  }
  __device__ static int64_t row_index(int blocks) { return blockIdx.x / static_cast<unsigned>(blocks); }
  __device__ bf16& at(int column) const { return reinterpret_cast<bf16*>(packs)[column]; }
  __device__ float target_logit() const { return target < 0 ? 0.0f : widen(at(target)); }

  /// Excludes padding: exp(-inf) = 0.
  __device__ void mask_padding() const {
    if (columns >= count * N) return;
    for (int c = max(columns, 0) + static_cast<int>(threadIdx.x); c < count * N; c += threads) {
      at(c) = __float2bfloat16_rn(minus_infinity);
    }
    __syncthreads();
  }
  /// f(pack, index) for this thread's packs.
  template <typename F>
  __device__ void for_each_pack(F&& f) const {
#pragma unroll 4
    for (int k = static_cast<int>(threadIdx.x); k < count; k += threads)
      f(*reinterpret_cast<Pack<bf16, N>*>(packs + k), k);
  }

  __device__ float thread_max() const {
    __nv_bfloat162 max_logit = __float2bfloat162_rn(minus_infinity);
    for_each_pack([&](const Pack<bf16, N>& pack, int) {
      __nv_bfloat162 two[N / 2];
      memcpy(two, &pack, sizeof(pack));
      max_logit = __hmax2(max_logit, __hmax2(__hmax2(two[0], two[1]), __hmax2(two[2], two[3])));
    });
    return fmaxf(__low2float(max_logit), __high2float(max_logit));
  }
  /// Sum of exp(z - max_logit).
  __device__ float thread_sum(float max_logit) const {
    float sums[4] = {};
    for_each_pack([&](const Pack<bf16, N>& pack, int) {
      float x[N];
      widen(pack, x);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i % 4] += fast_exp(x[i] - max_logit);
    });
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  /// Overwrites the logits with exp(z - max_logit) / 2^log2_sum - [target].
  __device__ void write_gradient(float max_logit, float log2_sum) const {
    const auto p = [=](float z) {
      return fast_exp2(fmaf(z - max_logit, static_cast<float>(log2_e), -log2_sum));
    };
    for_each_pack([&](const Pack<bf16, N>& pack, int k) {
      float x[N];
      widen(pack, x);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = p(x[i]);
      store<N>(row + k * N, round_to_pack<bf16>(x));
    });
    if (target >= 0 &&
        static_cast<int>(threadIdx.x) == target / N % threads) {  // the thread that wrote it above
      row[target] = __float2bfloat16_rn(p(target_logit()) - 1);
    }
  }
};

__global__ void __launch_bounds__(threads) cross_entropy_with_gradient_kernel(Params p) {
  if constexpr (hopper::has_sm_90) {
    extern __shared__ uint4 memory[];
    __shared__ uint64_t full;
    __shared__ ClusterReduce maxima, sums;
    __shared__ float warp_values[2][32];
    const int blocks = hopper::cluster_size();
    const RowSlice slice(p, memory, blocks);
    if (threadIdx.x == 0) {
      hopper::mbarrier_init(shared_address(&full), 1);
      maxima.open(blocks);
      sums.open(blocks);
      const auto bytes = static_cast<uint32_t>(slice.count) * 16;
      hopper::mbarrier_arrive_expect_tx(shared_address(&full), bytes);
      hopper::bulk_load(shared_address(memory), slice.row, bytes, shared_address(&full));
    }
    hopper::cluster_arrive();
    __syncthreads();
    hopper::mbarrier_wait(shared_address(&full), 0);
    slice.mask_padding();
    float max_logit = slice.thread_max();
    block_max(max_logit, warp_values[0]);
    hopper::cluster_wait();
    max_logit = maxima(max_logit, blocks, [](float a, float b) { return fmaxf(a, b); });
    float sum[1] = {slice.thread_sum(max_logit)};
    block_sum(sum, warp_values[1]);
    sum[0] = sums(sum[0], blocks, [](float a, float b) { return a + b; });
    if (threadIdx.x == 0 && slice.writes_loss) {
      p.args.losses[RowSlice::row_index(blocks)] = logf(sum[0]) + max_logit - slice.target_logit();
    }
    slice.write_gradient(max_logit, __log2f(sum[0]));
  }
}

/// Otherwise the body is empty.
bool is_built_for_device() {
  static const bool is =
      compiled_arch(reinterpret_cast<const void*>(cross_entropy_with_gradient_kernel)) >= 90;
  return is;
}

}  // namespace

bool has_cross_entropy_with_gradient(const VocabShape& shape) {
  return shape.dtype == Dtype::bf16 && shape.width % N == 0 && blocks_per_row(shape) > 0 &&
         is_built_for_device() && shared_memory_limit() >= slice_bytes + static_bytes;
}

void cross_entropy_with_gradient(const VocabShape& shape, const CrossEntropyWithGradientArgs& args,
                                 CUstream_st* stream) {
  const int64_t blocks = blocks_per_row(shape), bytes = packs_per_slice(shape, blocks) * 16;
  const auto kernel = cross_entropy_with_gradient_kernel;
  const char* const name = "cross_entropy_with_gradient";
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, slice_bytes), name);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             name);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.rows * blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Params{shape, args}), name);
}

}  // namespace teratron::cuda
