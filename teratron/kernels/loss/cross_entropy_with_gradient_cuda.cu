// One pass over the logits. A row lies in the shared memory of a cluster of blocks, which exchange its maximum and its sum;
// its parts arrive by one bulk copy each, and while a block waits for its own, others of the multiprocessor compute.
#include "teratron/kernels/common/launch_fault.h"
#include "teratron/kernels/gemm/hopper.cuh"
#include "teratron/kernels/loss/cross_entropy_cuda.h"

namespace teratron::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int threads = 256, N = pack_size<bf16>, most_blocks = 8;
constexpr int part_bytes = 110 << 10;  // two fit into a multiprocessor
constexpr int other_bytes = 1 << 10;   // of shared memory that a block needs beside its part, at most
constexpr float minus_infinity = -INFINITY;

struct Params {
  VocabShape shape;
  CrossEntropyWithGradientArgs args;
};

int64_t packs_per_part(const VocabShape& shape, int64_t blocks) {
  return ceil_div(shape.width / N, blocks);
}

/// Blocks that share a row; 0 if it is too long.
int64_t blocks_per_row(const VocabShape& shape) {
  int64_t blocks = 1;
  while (blocks <= most_blocks && packs_per_part(shape, blocks) * 16 > part_bytes) blocks *= 2;
  return blocks <= most_blocks ? blocks : 0;
}

/// A number of each block of the cluster, in all of them.
struct Exchange {
  uint64_t barrier;
  float of_block[most_blocks];

  __device__ void open(int blocks) {
    hopper::init_barrier(shared_address(&barrier), 1);
    hopper::init_barriers_done();
    hopper::arrive_expecting(shared_address(&barrier), static_cast<uint32_t>(blocks * sizeof(float)));
  }
  /// `x` is the same in all threads. The others' exchanges are open.
  template <typename Merge>
  __device__ float operator()(float x, int blocks, Merge&& merge) {
    if (blocks == 1) return x;
    if (static_cast<int>(threadIdx.x) < blocks) {
      hopper::send(shared_address(&of_block[hopper::block_in_cluster()]), x, shared_address(&barrier),
                   threadIdx.x);
    }
    hopper::await(shared_address(&barrier), 0);
    x = of_block[0];
    for (int b = 1; b < blocks; ++b) x = merge(x, of_block[b]);
    return x;
  }
};

/// What a block has of a row. Columns count from its first.
struct Part {
  uint4* packs;  // in shared memory
  bf16* row;     // where they came from
  int count;     // of packs
  int columns;   // logical ones from here to the row's end; the part may have fewer
  int target;    // -1: elsewhere
  bool tells_loss;

  __device__ Part(const Params& p, uint4* memory, int blocks) : packs(memory) {
    const int all = static_cast<int>(p.shape.width) / N, per = (all + blocks - 1) / blocks;
    const int rank = static_cast<int>(hopper::block_in_cluster()), first = rank * per * N;
    count = min(per, all - rank * per);
    row = static_cast<bf16*>(p.args.logits) + row_index(blocks) * p.shape.width + first;
    columns = static_cast<int>(p.shape.columns) - first;
    const int64_t column = p.args.targets[row_index(blocks)] - p.shape.first;
    const bool logical = column >= 0 && column < p.shape.columns;
    const int64_t here = column - first;
    target = logical && here >= 0 && here < count * N ? static_cast<int>(here) : -1;
    tells_loss = logical ? target >= 0 : rank == 0;
  }
  __device__ static int64_t row_index(int blocks) { return blockIdx.x / static_cast<unsigned>(blocks); }
  __device__ bf16& at(int column) const { return reinterpret_cast<bf16*>(packs)[column]; }
  __device__ float target_logit() const { return target < 0 ? 0.0f : widen(at(target)); }

  /// Padding takes no part, and exp makes it zero.
  __device__ void hide_padding() const {
    if (columns >= count * N) return;
    for (int c = max(columns, 0) + static_cast<int>(threadIdx.x); c < count * N; c += threads) {
      at(c) = __float2bfloat16_rn(minus_infinity);
    }
    __syncthreads();
  }
  /// f(pack, its place) for this thread's packs.
  template <typename F>
  __device__ void walk(F&& f) const {
#pragma unroll 4
    for (int k = static_cast<int>(threadIdx.x); k < count; k += threads)
      f(*reinterpret_cast<Pack<bf16, N>*>(packs + k), k);
  }

  __device__ float max_of_thread() const {
    __nv_bfloat162 most = __float2bfloat162_rn(minus_infinity);
    walk([&](const Pack<bf16, N>& pack, int) {
      __nv_bfloat162 two[N / 2];
      memcpy(two, &pack, sizeof(pack));
      most = __hmax2(most, __hmax2(__hmax2(two[0], two[1]), __hmax2(two[2], two[3])));
    });
    return fmaxf(__low2float(most), __high2float(most));
  }
  /// The sum of exp(z - most).
  __device__ float sum_of_thread(float most) const {
    float sums[4] = {};
    walk([&](const Pack<bf16, N>& pack, int) {
      float x[N];
      widen(pack, x);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i % 4] += fast_exp(x[i] - most);
    });
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  /// exp(z - most) / 2^log2_sum, less 1 at the target, over the logits.
  __device__ void write_gradient(float most, float log2_sum) const {
    const auto p = [=](float z) { return fast_exp2(fmaf(z - most, static_cast<float>(log2_e), -log2_sum)); };
    walk([&](const Pack<bf16, N>& pack, int k) {
      float x[N];
      widen(pack, x);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = p(x[i]);
      store<N>(row + k * N, round_to_pack<bf16>(x));
    });
    if (target >= 0 && static_cast<int>(threadIdx.x) == target / N % threads) {  // who wrote it above
      row[target] = __float2bfloat16_rn(p(target_logit()) - 1);
    }
  }
};

__global__ void __launch_bounds__(threads) cross_entropy_with_gradient_kernel(Params p) {
  if constexpr (hopper::is_sm_90) {
    extern __shared__ uint4 memory[];
    __shared__ uint64_t arrived;
    __shared__ Exchange maxima, sums;
    __shared__ float of_warps[2][32];
    const int blocks = hopper::cluster_size();
    const Part part(p, memory, blocks);
    if (threadIdx.x == 0) {
      hopper::init_barrier(shared_address(&arrived), 1);
      maxima.open(blocks);
      sums.open(blocks);
      const auto bytes = static_cast<uint32_t>(part.count) * 16;
      hopper::arrive_expecting(shared_address(&arrived), bytes);
      hopper::copy_bytes(shared_address(memory), part.row, bytes, shared_address(&arrived));
    }
    hopper::arrive_cluster();
    __syncthreads();
    hopper::await(shared_address(&arrived), 0);
    part.hide_padding();
    float most = part.max_of_thread();
    block_max(most, of_warps[0]);
    hopper::await_cluster();
    most = maxima(most, blocks, [](float a, float b) { return fmaxf(a, b); });
    float sum[1] = {part.sum_of_thread(most)};
    block_sum(sum, of_warps[1]);
    sum[0] = sums(sum[0], blocks, [](float a, float b) { return a + b; });
    if (threadIdx.x == 0 && part.tells_loss) {
      p.args.losses[Part::row_index(blocks)] = logf(sum[0]) + most - part.target_logit();
    }
    part.write_gradient(most, __log2f(sum[0]));
  }
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // told here, not to whoever asks next
  throw_launch_fault("cross_entropy_with_gradient", cudaGetErrorString(error));
}

// Else the body is empty.
bool is_built_for_device() {
  static const bool is = built_for(reinterpret_cast<const void*>(cross_entropy_with_gradient_kernel)) >= 90;
  return is;
}

}  // namespace

bool has_cross_entropy_with_gradient(const VocabShape& shape) {
  return shape.dtype == Dtype::bf16 && shape.width % N == 0 && blocks_per_row(shape) > 0 &&
         is_built_for_device() && shared_memory_limit() >= part_bytes + other_bytes;
}

void cross_entropy_with_gradient(const VocabShape& shape, const CrossEntropyWithGradientArgs& args,
                                 CUstream_st* stream) {
  const int64_t blocks = blocks_per_row(shape), bytes = packs_per_part(shape, blocks) * 16;
  const auto kernel = cross_entropy_with_gradient_kernel;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, part_bytes));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared));
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
  check(cudaLaunchKernelEx(&config, kernel, Params{shape, args}));
}

}  // namespace teratron::cuda
