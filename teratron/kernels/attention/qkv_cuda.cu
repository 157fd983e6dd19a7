// Gradient of packed QKV [S, B, G, P, D] from those of q, k and v (qkv.h): q and k are rotated back by
// RoPE; the sum over tokens is the gradient of the bias.
// A thread owns a 16-byte pack in the first half of a head's channels and its partner in the second, so
// that both members of a rotated pair are its own, and loops over tokens, four in flight through shared
// memory. Its sums over tokens are one workspace row, which a second kernel adds up.
// Bytes: q, k and v are read once and their merge is written once, but for parts that are in place already.
// One H200: 0.78 to 0.87 of a copy.
#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/async_copy.cuh"
#include "teratron/kernels/common/column_reduction.cuh"
#include "teratron/kernels/common/tiling.cuh"

namespace teratron::cuda {
namespace {

constexpr int V = 8;  // elements of a 16-byte pack
constexpr int max_threads = 256, blocks_per_sm = 3;

/// A thread owns a pack in the first half of a head's channels and its partner in the second, and loops over
/// tokens.
template <typename T>
struct Unit {
  const T* from;           // at the first token
  int stride_s, stride_b;  // can_merge_qkv() checks that offsets fit
  int column;              // of the output, in elements
  int pack;                // in the half
  bool rotated;

  __device__ Unit(const MergeQkvArgs& args, int index) {
    const int channels = static_cast<int>(args.channels), packs = channels / 2 / V;
    const int head = index / packs, per_group = static_cast<int>(args.per_group);
    const int group = head / per_group, place = head % per_group;
    const QkvPart& part = place < per_group - 2 ? args.q : place == per_group - 2 ? args.k : args.v;
    pack = index % packs;
    from = static_cast<const T*>(part.data) + group * part.stride_group +
           (place < per_group - 2 ? place * part.stride_head : 0) + pack * V;
    stride_s = static_cast<int>(part.stride_s);
    stride_b = static_cast<int>(part.stride_b);
    column = head * channels + pack * V;
    rotated = args.cos != nullptr && place < per_group - 1;
  }
};

/// Iterates over a thread's tokens without a division per token.
struct TokenCursor {
  int token, s, b;

  __device__ TokenCursor(int token, int batch) : token(token), s(token / batch), b(token % batch) {}
  __device__ void advance(const TokenCursor& step, int batch) {
    token += step.token;
    s += step.s;
    b += step.b;
    if (b < batch) return;
    b -= batch;
    ++s;
  }
};

/// cos and sin tables at a thread's packs.
struct Angles {
  const float *cos, *sin;  // at its pack of position 0
  const int64_t* positions;
  int64_t stride_s, stride_b;
  int half, length;

  __device__ Angles(const MergeQkvArgs& args, int pack)
      : cos(args.cos + pack * V),
        sin(args.sin + pack * V),
        positions(args.positions),
        stride_s(args.position_stride_s),
        stride_b(args.position_stride_b),
        half(static_cast<int>(args.channels / 2)),
        length(static_cast<int>(args.length)) {}
  /// Offset of a token's row; 0 past the last token.
  __device__ int64_t offset(const TokenCursor& at) const {
    return at.s < length ? positions[at.s * stride_s + at.b * stride_b] * half : 0;
  }
};

struct TokenAngles {
  Pack<float, 4> cos[V / 4], sin[V / 4];

  __device__ void read(const Angles& angles, int64_t offset) {
#pragma unroll
    for (int i = 0; i < V / 4; ++i) {
      cos[i] = load<4>(angles.cos + offset + 4 * i);
      sin[i] = load<4>(angles.sin + offset + 4 * i);
    }
  }
  __device__ void rotate_back(float (&low)[V], float (&high)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float a = low[i], b = high[i], c = cos[i / 4].v[i % 4], s = sin[i / 4].v[i % 4];
      low[i] = a * c + b * s;
      high[i] = b * c - a * s;
    }
  }
};

/// Streams a thread's tokens through shared memory, which keeps more bytes in flight than registers could.
template <typename T>
struct TokenPipeline {
  static constexpr int stages = 4, half_pitch = max_threads * 16, stage_pitch = 2 * half_pitch;
  static constexpr int bytes = stages * stage_pitch;

  SharedAddress first;  // this thread's
  Unit<T> unit;
  int half, length;

  __device__ void read(int stage, float (&low)[V], float (&high)[V]) const {
    widen(load_shared<Pack<T, V>>(first + stage * stage_pitch), low);
    widen(load_shared<Pack<T, V>>(first + stage * stage_pitch + half_pitch), high);
  }
  /// One copy group, empty past the last token.
  __device__ void fetch(int stage, const TokenCursor& at) const {
    if (at.s < length) {
      const T* const from = unit.from + (at.s * unit.stride_s + at.b * unit.stride_b);
      cp_async(first + stage * stage_pitch, from);
      cp_async(first + stage * stage_pitch + half_pitch, from + half);
    }
    cp_async_commit();
  }
};

template <typename T, bool rotated, bool summed>
__global__ void __launch_bounds__(max_threads, blocks_per_sm)
    merge_kernel(const __grid_constant__ MergeQkvArgs args) {
  using Pipeline = TokenPipeline<T>;
  __shared__ __align__(16) unsigned char bytes[Pipeline::bytes];
  const int half = static_cast<int>(args.channels / 2), batch = static_cast<int>(args.batch);
  const int width = static_cast<int>(args.groups * args.per_group * args.channels);
  const int index = static_cast<int>(tile_column<1>());
  if (index >= width / 2 / V) return;
  const Unit<T> unit(args, index);
  const bool rotates = rotated && unit.rotated;
  const bool in_place = !rotates && unit.from == static_cast<const T*>(args.out) + unit.column;
  if (in_place && !summed) return;
  const Pipeline pipeline{shared_address(bytes) + (threadIdx.y * blockDim.x + threadIdx.x) * 16, unit, half,
                          static_cast<int>(args.length)};
  const Angles angles(args, unit.pack);
  const int tokens = static_cast<int>(args.length) * batch, first = static_cast<int>(tile_first_row());
  const TokenCursor step(static_cast<int>(tile_row_step()), batch);
  TokenCursor prefetch(first, batch), next_token(first, batch);
#pragma unroll
  for (int stage = 0; stage < Pipeline::stages - 1; ++stage) {
    pipeline.fetch(stage, prefetch);
    prefetch.advance(step, batch);
  }
  int64_t next_offset = rotates ? angles.offset(next_token) : 0;
  float sums[2][summed ? V : 1] = {};
  T* to = static_cast<T*>(args.out) + first * int64_t{width} + unit.column;
  int stage = 0;
  for (int token = first; token < tokens; token += step.token, to += step.token * int64_t{width}) {
    pipeline.fetch((stage + Pipeline::stages - 1) % Pipeline::stages, prefetch);
    prefetch.advance(step, batch);
    TokenAngles now;
    if (rotates) {
      now.read(angles, next_offset);
      next_token.advance(step, batch);
      next_offset = angles.offset(next_token);
    }
    cp_async_wait<Pipeline::stages - 1>();
    float low[V], high[V];
    pipeline.read(stage, low, high);
    if (rotates) now.rotate_back(low, high);
    if (!in_place) {
      store<V>(to, round_to_pack<T>(low));
      store<V>(to + half, round_to_pack<T>(high));
    }
    if constexpr (summed) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums[0][i] += low[i];
        sums[1][i] += high[i];
      }
    }
    stage = (stage + 1) % Pipeline::stages;
  }
  if constexpr (summed) {
    float* const sum = static_cast<float*>(args.dbias.workspace) + first * int64_t{width} + unit.column;
    store_values(sum, sums[0]);
    store_values(sum + half, sums[1]);
  }
}

template <typename T>
void launch(const MergeQkvArgs& args, const Tiling& t, cudaStream_t stream) {
  const bool rotated = args.cos != nullptr, summed = args.dbias.workspace != nullptr;
  const auto kernel = rotated ? (summed ? merge_kernel<T, true, true> : merge_kernel<T, true, false>)
                              : (summed ? merge_kernel<T, false, true> : merge_kernel<T, false, false>);
  kernel<<<t.grid, t.block, 0, stream>>>(args);
  check_launch("merge_qkv");
}

Tiling tiles(const MergeQkvArgs& args) {
  // One wave of blocks, since each writes partial sums.
  return tile_rows(args.groups * args.per_group * args.channels / 2 / V, args.length * args.batch,
                   blocks_per_sm);
}

bool is_vectorizable(const MergeQkvArgs& args, const QkvPart& part) {
  constexpr int64_t limit = int64_t{1} << 31;  // 32-bit offsets
  return args.length * part.stride_s + args.batch * part.stride_b < limit && part.stride_s % V == 0 &&
         part.stride_b % V == 0 && part.stride_group % V == 0 && part.stride_head % V == 0;
}

}  // namespace

bool can_merge_qkv(const MergeQkvArgs& args) {
  constexpr int64_t limit = int64_t{1} << 30;  // 32-bit token indices, including those past the last
  return (args.dtype == Dtype::bf16 || args.dtype == Dtype::f16) && args.channels % (2 * V) == 0 &&
         args.length * args.batch < limit && is_vectorizable(args, args.q) && is_vectorizable(args, args.k) &&
         is_vectorizable(args, args.v) &&
         aligned(args.q.data, args.k.data, args.v.data, args.out, args.cos, args.sin);
}

int64_t merge_qkv_workspace_rows(const MergeQkvArgs& args) {
  const Tiling t = tiles(args);
  return int64_t{t.grid.y} * t.block.y;
}

void merge_qkv(const MergeQkvArgs& args, CUstream_st* stream) {
  const Tiling t = tiles(args);
  if (args.dtype == Dtype::bf16) {
    launch<__nv_bfloat16>(args, t, stream);
  } else {
    launch<__half>(args, t, stream);
  }
  if (args.dbias.workspace == nullptr) return;
  finalize_column_sums<float>({.sums = {args.dbias},
                               .rows = merge_qkv_workspace_rows(args),
                               .width = args.groups * args.per_group * args.channels},
                              stream);
}

}  // namespace teratron::cuda
