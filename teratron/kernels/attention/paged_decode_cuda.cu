#include <algorithm>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = 128;

__host__ __device__ constexpr int ceil_quotient(int a, int b) {
  return (a + b - 1) / b;
}

/// Keys [begin, end) of a block, and the position of the new token, which is the last key.
struct KeyRange {
  int begin, end, last;

  __device__ KeyRange(const PagedDecodeArgs& args, int row, int split, int step) {
    last = static_cast<int>(args.positions[row * args.position_stride]);
    const int low = args.window > 0 ? max(0, last + 1 - static_cast<int>(args.window)) : 0;
    const int per_split = ceil_quotient(ceil_quotient(last + 1 - low, args.splits), step) * step;
    begin = low + split * per_split;
    end = min(begin + per_split, last + 1);
  }
};

/// A team of `lanes` threads computes with one key at a time, each with `packs` packs of channels, for H
/// query heads that share it.
template <typename T, int lanes, int packs, int H>
struct Team {
  static constexpr int V = 16 / sizeof(T), C = V * packs;
  float q[H][C], sum[H][C], max[H], weight[H];
  int lane;

  __device__ int channel(int pack) const { return (pack * lanes + lane) * V; }

  __device__ void load_vector(const T* x, int channels, float (&to)[C]) const {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      float part[V];
#pragma unroll
      for (int i = 0; i < V; ++i) part[i] = 0.0f;
      if (x && channel(p) < channels) widen(load<V>(x + channel(p)), part);
#pragma unroll
      for (int i = 0; i < V; ++i) to[p * V + i] = part[i];
    }
  }

  __device__ float score(int h, const float (&k)[C]) const {
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < C; ++i) dot = fmaf(q[h][i], k[i], dot);
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, offset);
    return dot;
  }

  /// Two keys; a score of -inf is none.
  __device__ void add(int h, float s0, float s1, const float (&v0)[C], const float (&v1)[C]) {
    const float top = fmaxf(max[h], fmaxf(s0, s1));
    if (top == -INFINITY) return;
    const float keep = fast_exp(max[h] - top), w0 = fast_exp(s0 - top), w1 = fast_exp(s1 - top);
    max[h] = top;
    weight[h] = weight[h] * keep + w0 + w1;
#pragma unroll
    for (int i = 0; i < C; ++i) sum[h][i] = fmaf(w1, v1[i], fmaf(w0, v0[i], sum[h][i] * keep));
  }
};

/// Where a block writes: the final result if it has all keys, else its part for merge_kernel.
template <typename T>
__device__ void write_result(const PagedDecodeArgs& args, int64_t head, int c, float2 max_weight,
                             float value) {
  if (args.splits == 1) {
    static_cast<T*>(args.out)[head * args.channels + c] = round_to<T>(value / max_weight.y);
    return;
  }
  float* const part = args.partial + (head * args.splits + blockIdx.x) * (args.channels + 2);
  part[2 + c] = value;
  if (c == 0) part[0] = max_weight.x, part[1] = max_weight.y;
}

/// The sequence and the query heads of a block (split, group and chunk of its heads, row).
template <typename T, int H>
struct Work {
  const PagedDecodeArgs& args;
  int row, group, first, heads;
  int64_t head;  // the first, in the model
  const int32_t* table;
  const T *new_k, *new_v;

  __device__ explicit Work(const PagedDecodeArgs& a) : args(a), row(blockIdx.z) {
    const int per_group = a.heads / a.groups, chunks = ceil_quotient(per_group, H);
    group = blockIdx.y / chunks;
    first = blockIdx.y % chunks * H;
    heads = min(H, per_group - first);
    head = group * per_group + first;
    table = a.table + row * a.pages_per_row;
    new_k = static_cast<const T*>(a.k) + row * a.k_stride_row + group * a.k_stride_group;
    new_v = static_cast<const T*>(a.v) + row * a.v_stride_row + group * a.v_stride_group;
  }
  /// Of position j, in elements.
  __device__ int64_t slot(int j) const {
    const int64_t page = table[j >> args.page_shift];
    const int64_t token = (page << args.page_shift) + (j & ((1 << args.page_shift) - 1));
    return (token * args.groups + group) * args.channels;
  }
  __device__ const T* query(int h) const {
    if (h >= heads) return nullptr;
    return static_cast<const T*>(args.q) + row * args.q_stride_row + (head + h) * args.q_stride_head;
  }
};

/// The keys of a block, 2 per team at a time.
template <typename T, int lanes, int packs, int H>
__device__ void attend(const Work<T, H>& work, const KeyRange& keys, Team<T, lanes, packs, H>& mine) {
  constexpr int teams = threads / lanes, C = Team<T, lanes, packs, H>::C;
  const PagedDecodeArgs& args = work.args;
  const int team = threadIdx.x / lanes;
  for (int first_key = keys.begin; first_key < keys.end; first_key += 2 * teams) {
    float k[2][C], v[2][C];
    int j[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      j[u] = first_key + u * teams + team;
      const bool valid = j[u] < keys.end, is_new = j[u] == keys.last;
      const int64_t at = valid && !is_new ? work.slot(j[u]) : 0;
      const T* const from_k = is_new ? work.new_k : static_cast<const T*>(args.k_pages) + at;
      const T* const from_v = is_new ? work.new_v : static_cast<const T*>(args.v_pages) + at;
      mine.load_vector(valid ? from_k : nullptr, args.channels, k[u]);
      mine.load_vector(valid ? from_v : nullptr, args.channels, v[u]);
    }
#pragma unroll
    for (int h = 0; h < H; ++h) {
      float s[2];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        s[u] = mine.score(h, k[u]);
        if (args.slopes && h < work.heads)
          s[u] += args.slopes[work.head + h] * static_cast<float>(j[u] - keys.last);
        if (j[u] >= keys.end) s[u] = -INFINITY;
      }
      mine.add(h, s[0], s[1], v[0], v[1]);
    }
  }
}

/// The new key and value to their slot, by the team of the block that attends to them.
template <typename T, int lanes, int packs, int H>
__device__ void store_new(const Work<T, H>& work, const KeyRange& keys,
                          const Team<T, lanes, packs, H>& mine) {
  const bool has_last = keys.begin <= keys.last && keys.last < keys.end;
  if (work.first > 0 || !has_last || threadIdx.x >= lanes) return;
  constexpr int V = Team<T, lanes, packs, H>::V;
  const int64_t at = work.slot(keys.last);
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int c = mine.channel(p);
    if (c >= work.args.channels) continue;
    store<V>(static_cast<T*>(work.args.k_pages) + at + c, load<V>(work.new_k + c));
    store<V>(static_cast<T*>(work.args.v_pages) + at + c, load<V>(work.new_v + c));
  }
}

template <typename T, int lanes, int packs, int H>
__global__ void __launch_bounds__(threads) decode_kernel(PagedDecodeArgs args) {
  using Mine = Team<T, lanes, packs, H>;
  constexpr int teams = threads / lanes, width = Mine::C * lanes;
  __shared__ float shared_sum[teams][H][width];
  __shared__ float shared_max[teams][H], shared_weight[teams][H];
  const Work<T, H> work(args);
  const KeyRange keys(args, work.row, blockIdx.x, teams);
  const int team = threadIdx.x / lanes;
  Mine mine;
  mine.lane = threadIdx.x % lanes;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    mine.load_vector(work.query(h), args.channels, mine.q[h]);
    mine.max[h] = -INFINITY;
    mine.weight[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < Mine::C; ++i) mine.q[h][i] *= args.scale, mine.sum[h][i] = 0.0f;
  }
  attend(work, keys, mine);
  store_new(work, keys, mine);
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (mine.lane == 0) shared_max[team][h] = mine.max[h], shared_weight[team][h] = mine.weight[h];
#pragma unroll
    for (int i = 0; i < Mine::C; ++i)
      shared_sum[team][h][mine.channel(i / Mine::V) + i % Mine::V] = mine.sum[h][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < work.heads * args.channels; i += threads) {
    const int h = i / args.channels, c = i % args.channels;
    float top = -INFINITY, value = 0.0f, weight = 0.0f;
    for (int t = 0; t < teams; ++t) top = fmaxf(top, shared_max[t][h]);
    for (int t = 0; t < teams; ++t) {
      const float factor = shared_max[t][h] == -INFINITY ? 0.0f : fast_exp(shared_max[t][h] - top);
      value += factor * shared_sum[t][h][c];
      weight += factor * shared_weight[t][h];
    }
    write_result<T>(args, static_cast<int64_t>(work.row) * args.heads + work.head + h, c, {top, weight},
                    value);
  }
}

/// Block (head, row): adds up the splits.
template <typename T>
__global__ void merge_kernel(PagedDecodeArgs args) {
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
  const dim3 grid(args.splits, args.groups * chunks, args.rows);
  decode_kernel<T, lanes, packs, H><<<grid, threads, 0, stream>>>(args);
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

void paged_decode(const PagedDecodeArgs& args, CUstream_st* stream) {
  const auto run = [&]<typename T>(T) {
    launch<T>(args, stream);
    if (args.splits == 1) return;
    const unsigned width = static_cast<unsigned>(std::min(ceil_quotient(args.channels, 32) * 32, 256));
    merge_kernel<T><<<dim3(args.heads, args.rows), width, 0, stream>>>(args);
    check_launch("paged_decode");
  };
  if (args.dtype == Dtype::bf16) return run(__nv_bfloat16{});
  if (args.dtype == Dtype::f16) return run(__half{});
  run(float{});
}

}  // namespace teratron::cuda
