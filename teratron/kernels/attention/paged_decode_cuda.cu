#include <algorithm>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/attention/paged_decode_device.cuh"
#include "teratron/kernels/common/dependent_launch.cuh"

namespace teratron::cuda {
namespace {

/// This block's maximum, weight and sum of each head, which the blocks of its cluster read.
template <int H, int width>
struct BlockResult {
  float max[H], weight[H], sum[H][width];
};

/// Adds up the teams of the block.
template <typename T, int lanes, int packs, int H, int width>
__device__ void merge_teams(const PagedWork<T, H>& work, const Team<T, lanes, packs, H>& mine,
                            BlockResult<H, width>& result) {
  constexpr int teams = threads / lanes;
  __shared__ float shared_sum[teams][H][width];
  __shared__ float shared_max[teams][H], shared_weight[teams][H];
  const int team = threadIdx.x / lanes, channels = work.args.channels;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (mine.lane == 0) shared_max[team][h] = mine.max[h], shared_weight[team][h] = mine.weight[h];
#pragma unroll
    for (int i = 0; i < mine.C; ++i)
      shared_sum[team][h][mine.channel(i / mine.V) + i % mine.V] = mine.sum[h][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < work.heads * channels; i += threads) {
    const int h = i / channels, c = i % channels;
    float top = -INFINITY, value = 0.0f, weight = 0.0f;
    for (int t = 0; t < teams; ++t) top = fmaxf(top, shared_max[t][h]);
    for (int t = 0; t < teams; ++t) {
      const float factor = shared_max[t][h] == -INFINITY ? 0.0f : fast_exp(shared_max[t][h] - top);
      value += factor * shared_sum[t][h][c];
      weight += factor * shared_weight[t][h];
    }
    result.sum[h][c] = value;
    if (c == 0) result.max[h] = top, result.weight[h] = weight;
  }
}

/// Adds up the blocks of the cluster, each of which stores a part of the channels.
template <typename T, int H, int width>
__device__ void merge_cluster(const PagedWork<T, H>& work, BlockResult<H, width>& mine) {
  const int splits = work.args.splits, channels = work.args.channels;
  cluster_sync();
  for (int i = blockIdx.x * threads + threadIdx.x; i < work.heads * channels; i += splits * threads) {
    const int h = i / channels, c = i % channels;
    float top = -INFINITY, value = 0.0f, weight = 0.0f;
    for (int s = 0; s < splits; ++s) top = fmaxf(top, read_of_block(&mine.max[h], s));
    for (int s = 0; s < splits; ++s) {
      const float max = read_of_block(&mine.max[h], s);
      const float factor = max == -INFINITY ? 0.0f : fast_exp(max - top);
      value += factor * read_of_block(&mine.sum[h][c], s);
      weight += factor * read_of_block(&mine.weight[h], s);
    }
    static_cast<T*>(work.args.out)[work.out_head() * channels + i] = round_to<T>(value / weight);
  }
  cluster_sync();  // a block that has ended cannot be read
}

template <typename T, int lanes, int packs, int H>
__global__ void __launch_bounds__(threads) decode_kernel(PagedDecodeArgs args) {
  using Mine = Team<T, lanes, packs, H>;
  constexpr int width = Mine::C * lanes;
  __shared__ BlockResult<H, width> result;
  __shared__ __align__(16) T new_key[width];
  const PagedWork<T, H> work(args);
  const KeyRange keys(args, work.row, blockIdx.x, threads / lanes);
  Mine mine(threadIdx.x % lanes);
  KeyStream<T, lanes, packs, H> stream;
  // Positions, pages and what is cached are older than the predecessor, which computes queries and new keys.
  stream.load(work, keys, mine, keys.begin);
  wait_for_predecessor();
  release_successor();
  mine.start(work, keys.last);
  if (keys.has_last() && threadIdx.x < lanes) mine.store_new(work, keys.last, new_key);
  __syncthreads();
  constexpr int step = stream.at_once * stream.teams;
  for (int first_key = keys.begin; first_key < keys.end; first_key += step) {
    if (first_key > keys.begin) stream.load(work, keys, mine, first_key);
    if (first_key + step > keys.last) stream.add_new(work, keys, mine, first_key, new_key);
    stream.attend(work, keys, first_key, mine);
  }
  merge_teams(work, mine, result);
  if (args.clustered) {
    merge_cluster(work, result);
    return;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < work.heads * args.channels; i += threads) {
    const int h = i / args.channels, c = i % args.channels;
    const int64_t head = work.out_head() + h;
    if (args.splits == 1) {
      static_cast<T*>(args.out)[head * args.channels + c] = round_to<T>(result.sum[h][c] / result.weight[h]);
      continue;
    }
    float* const part = args.partial + (head * args.splits + blockIdx.x) * (args.channels + 2);
    part[2 + c] = result.sum[h][c];
    if (c == 0) part[0] = result.max[h], part[1] = result.weight[h];
  }
}

/// Block (head, row): adds up the splits.
template <typename T>
__global__ void merge_kernel(PagedDecodeArgs args) {
  wait_for_predecessor();
  release_successor();
  const int64_t head = static_cast<int64_t>(blockIdx.y) * args.heads + blockIdx.x;
  const float* const parts = args.partial + head * args.splits * (args.channels + 2);
  const auto part = [&](int split) { return parts + split * (args.channels + 2); };
  float top = -INFINITY;
  for (int split = 0; split < args.splits; ++split) top = fmaxf(top, part(split)[0]);
  for (int c = threadIdx.x; c < args.channels; c += blockDim.x) {
    float value = 0.0f, weight = 0.0f;
    for (int split = 0; split < args.splits; ++split) {
      const float max = part(split)[0];
      if (max == -INFINITY) continue;
      const float factor = fast_exp(max - top);
      value += factor * part(split)[2 + c];
      weight += factor * part(split)[1];
    }
    static_cast<T*>(args.out)[head * args.channels + c] = round_to<T>(value / weight);
  }
}

template <typename T, int lanes, int packs, int H>
void launch(const PagedDecodeArgs& args, cudaStream_t stream) {
  const int chunks = ceil_quotient(args.heads / args.groups, H);
  const LaunchShape shape{.grid = dim3(args.splits, args.groups * chunks, args.rows),
                          .block = dim3(threads),
                          .cluster = args.clustered ? args.splits : 1};
  launch_dependent(decode_kernel<T, lanes, packs, H>, shape, stream, args);
  check_launch("paged_decode");
}

template <typename T, int lanes, int packs>
void launch(const PagedDecodeArgs& args, cudaStream_t stream) {
  const int per_group = args.heads / args.groups;
  if (per_group == 1) return launch<T, lanes, packs, 1>(args, stream);
  if (per_group == 2) return launch<T, lanes, packs, 2>(args, stream);
  return launch<T, lanes, packs, 4>(args, stream);
}

template <typename T>
void launch(const PagedDecodeArgs& args, cudaStream_t stream) {
  const int packs = ceil_quotient(args.channels, 16 / sizeof(T));
  if (packs <= 8) return launch<T, 8, 1>(args, stream);
  if (packs <= 16) return launch<T, 16, 1>(args, stream);
  if (packs <= 32) return launch<T, 16, 2>(args, stream);
  if constexpr (sizeof(T) == 4) launch<T, 16, 4>(args, stream);
}

}  // namespace

bool has_paged_decode_clusters() {
  return compute_capability_major() >= 9;
}

void paged_decode(const PagedDecodeArgs& args, CUstream_st* stream) {
  const auto run = [&]<typename T>(T) {
    launch<T>(args, stream);
    if (args.splits == 1 || args.clustered) return;
    const unsigned width = static_cast<unsigned>(std::min(ceil_quotient(args.channels, 32) * 32, 256));
    const LaunchShape shape{.grid = dim3(args.heads, args.rows), .block = dim3(width)};
    launch_dependent(merge_kernel<T>, shape, stream, args);
    check_launch("paged_decode");
  };
  if (args.dtype == Dtype::bf16) return run(__nv_bfloat16{});
  if (args.dtype == Dtype::f16) return run(__half{});
  run(float{});
}

}  // namespace teratron::cuda
