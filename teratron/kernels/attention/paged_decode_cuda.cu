// Attention of one new token per row over its pages of keys and values (paged_decode.h):
//   y = sum_j exp(s_j - M) v_j / sum_j exp(s_j - M), s_j = scale q k_j, M = max_j s_j
// Block (split, group and chunk of its heads, row): the warps of a block take keys in turn (tensor cores,
// paged_decode_mma.cuh; f32: teams of lanes, paged_decode_f32.cuh), each with its own M, and are merged in
// shared memory. The splits of a long text are merged over a cluster, or by a second kernel.
// Bytes: keys and values are read once for all query heads of a group; the new ones are also written.
#include <algorithm>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/attention/paged_decode_f32.cuh"
#include "teratron/kernels/attention/paged_decode_mma.cuh"
#include "teratron/kernels/common/dependent_launch.cuh"

namespace teratron::cuda {
namespace {

constexpr int most_in_cluster = 8;

/// Adds up the parts of the block.
template <typename Keys>
__device__ void merge_parts(const typename Keys::Work& work,
                            const HeadSums<Keys::H, Keys::W> (&parts)[Keys::parts],
                            HeadSums<Keys::H, Keys::W>& result) {
  const int channels = work.args.channels;
  for (int i = threadIdx.x; i < work.heads * channels; i += threads) {
    const int h = i / channels, c = i % channels, at = result.at(h, c);
    const MergedSum sum = MergedSum::of<Keys::parts>(
        Keys::parts, [&](int p) { return parts[p].max[h]; }, [&](int p) { return parts[p].weight[h]; },
        [&](int p) { return parts[p].value[at]; });
    result.value[at] = sum.value;
    if (c == 0) result.max[h] = sum.top, result.weight[h] = sum.weight;
  }
}

/// Adds up the blocks of the cluster, each of which stores a part of the channels.
template <typename Keys>
__device__ void merge_cluster(const typename Keys::Work& work, HeadSums<Keys::H, Keys::W>& mine) {
  const int splits = work.args.splits, channels = work.args.channels;
  cluster_sync();
  for (int i = blockIdx.x * threads + threadIdx.x; i < work.heads * channels; i += splits * threads) {
    const int h = i / channels, at = mine.at(h, i % channels);
    const MergedSum sum = MergedSum::of<most_in_cluster>(
        splits, [&](int s) { return read_of_block(&mine.max[h], s); },
        [&](int s) { return read_of_block(&mine.weight[h], s); },
        [&](int s) { return read_of_block(&mine.value[at], s); });
    static_cast<typename Keys::T*>(work.args.out)[work.out_head() * channels + i] =
        round_to<typename Keys::T>(normalized(work.args, work.head() + h, sum.top, sum.weight, sum.value));
  }
  cluster_sync();  // a block that has ended cannot be read
}

/// Stores the result of a block without a cluster.
template <typename Keys>
__device__ void store_result(const typename Keys::Work& work, const HeadSums<Keys::H, Keys::W>& result) {
  using T = typename Keys::T;
  const PagedDecodeArgs& args = work.args;
  for (int i = threadIdx.x; i < work.heads * args.channels; i += threads) {
    const int h = i / args.channels, c = i % args.channels;
    const int64_t head = work.out_head() + h;
    const float value = result.value[result.at(h, c)];
    if (args.splits == 1) {
      static_cast<T*>(args.out)[head * args.channels + c] =
          round_to<T>(normalized(args, work.head() + h, result.max[h], result.weight[h], value));
      continue;
    }
    float* const part = args.partial + (head * args.splits + blockIdx.x) * (args.channels + 2);
    part[2 + c] = value;
    if (c == 0) part[0] = result.max[h], part[1] = result.weight[h];
  }
}

template <typename Keys>
__global__ void __launch_bounds__(threads, Keys::blocks_per_sm) decode_kernel(PagedDecodeArgs args) {
  using Result = HeadSums<Keys::H, Keys::W>;
  __shared__ Result parts[Keys::parts], result;
  __shared__ __align__(16) typename Keys::T new_key[Keys::W];
  const typename Keys::Work work(args);
  const KeyRange range(args, work.row, blockIdx.x, Keys::key_step);
  Keys keys;
  // Positions, pages and what is cached are older than the predecessor, which computes queries and new keys.
  keys.load_first(work, range);
  wait_for_predecessor();
  release_successor();
  keys.start(work, range);
  if (range.has_new() && threadIdx.x < 32) store_new(work, range.last, new_key);
  __syncthreads();
  keys.attend_all(work, range, new_key);
  keys.store(parts);
  __syncthreads();
  merge_parts<Keys>(work, parts, result);
  if (args.clustered) {
    merge_cluster<Keys>(work, result);
  } else {
    __syncthreads();
    store_result<Keys>(work, result);
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
    static_cast<T*>(args.out)[head * args.channels + c] =
        round_to<T>(normalized(args, static_cast<int>(blockIdx.x), top, weight, value));
  }
}

template <typename Keys>
void launch_keys(const PagedDecodeArgs& args, cudaStream_t stream) {
  const int chunks = ceil_quotient(args.heads / args.groups, Keys::H);
  const LaunchShape shape{.grid = dim3(args.splits, args.groups * chunks, args.rows),
                          .block = dim3(threads),
                          .cluster = args.clustered ? args.splits : 1};
  launch_dependent(decode_kernel<Keys>, shape, stream, args);
  check_launch("paged_decode");
}

template <int lanes, int packs>
void launch_f32(const PagedDecodeArgs& args, cudaStream_t stream) {
  if (args.heads == args.groups) return launch_keys<PagedTeams<lanes, packs, 1>>(args, stream);
  launch_keys<PagedTeams<lanes, packs, 4>>(args, stream);
}

template <typename T>
void launch(const PagedDecodeArgs& args, cudaStream_t stream) {
  const int width = args.channels;
  if constexpr (std::is_same_v<T, float>) {
    if (width <= 32) return launch_f32<8, 1>(args, stream);
    if (width <= 64) return launch_f32<16, 1>(args, stream);
    if (width <= 128) return launch_f32<16, 2>(args, stream);
    launch_f32<16, 4>(args, stream);
  } else {
    if (width <= 64) return launch_keys<PagedTiles<T, 64>>(args, stream);
    if (width <= 128) return launch_keys<PagedTiles<T, 128>>(args, stream);
    launch_keys<PagedTiles<T, 256>>(args, stream);
  }
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
