#include "teratron/kernels/attention/qkv_cuda.h"
#include "teratron/kernels/common/async_copy.cuh"
#include "teratron/kernels/common/partials.cuh"
#include "teratron/kernels/common/tiling.cuh"

namespace teratron::cuda {
namespace {

constexpr int V = 8;  // elements of a 16-byte pack
constexpr int max_threads = 256, blocks_per_multiprocessor = 3;

/// A thread owns a pack in the first half of a head's channels and its partner in the second, and walks down the
/// tokens.
template <typename T>
struct Unit {
  const T* from;           // at the first token
  int stride_s, stride_b;  // can_merge_qkv sees to it that offsets fit
  int column;              // of what it writes, in elements
  int pack;                // in the half
  bool turned;

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
    turned = args.cos != nullptr && place < per_group - 1;
  }
};

/// A token on a thread's way down, without a division per token.
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

/// The angles of a thread's packs at the tokens.
struct Angles {
  const float *cos, *sin;  // of its pack at position 0
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
  /// Where those of a token lie; of one past the last, anywhere.
  __device__ int64_t place(const TokenCursor& at) const {
    return at.s < length ? positions[at.s * stride_s + at.b * stride_b] * half : 0;
  }
};

struct AnglesOfToken {
  Pack<float, 4> cos[V / 4], sin[V / 4];

  __device__ void read(const Angles& angles, int64_t place) {
#pragma unroll
    for (int i = 0; i < V / 4; ++i) {
      cos[i] = load<4>(angles.cos + place + 4 * i);
      sin[i] = load<4>(angles.sin + place + 4 * i);
    }
  }
  __device__ void turn_back(float (&low)[V], float (&high)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float a = low[i], b = high[i], c = cos[i / 4].v[i % 4], s = sin[i / 4].v[i % 4];
      low[i] = a * c + b * s;
      high[i] = b * c - a * s;
    }
  }
};

/// A thread's tokens on their way through shared memory, which keeps more bytes in flight than registers could.
template <typename T>
struct TokenPipe {
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
      copy_async(first + stage * stage_pitch, from);
      copy_async(first + stage * stage_pitch + half_pitch, from + half);
    }
    end_copy_group();
  }
};

template <typename T, bool turned, bool summed>
__global__ void __launch_bounds__(max_threads, blocks_per_multiprocessor)
    merge_kernel(const __grid_constant__ MergeQkvArgs args) {
  using Pipe = TokenPipe<T>;
  __shared__ __align__(16) unsigned char bytes[Pipe::bytes];
  const int half = static_cast<int>(args.channels / 2), batch = static_cast<int>(args.batch);
  const int width = static_cast<int>(args.groups * args.per_group * args.channels);
  const int index = static_cast<int>(tile_column<1>());
  if (index >= width / 2 / V) return;
  const Unit<T> unit(args, index);
  const bool turns = turned && unit.turned;
  const bool stays = !turns && unit.from == static_cast<const T*>(args.out) + unit.column;
  if (stays && !summed) return;
  const Pipe pipe{shared_address(bytes) + (threadIdx.y * blockDim.x + threadIdx.x) * 16, unit, half,
                  static_cast<int>(args.length)};
  const Angles angles(args, unit.pack);
  const int tokens = static_cast<int>(args.length) * batch, first = static_cast<int>(tile_first_row());
  const TokenCursor step(static_cast<int>(tile_row_step()), batch);
  TokenCursor sent(first, batch), turned_next(first, batch);
#pragma unroll
  for (int stage = 0; stage < Pipe::stages - 1; ++stage) {
    pipe.fetch(stage, sent);
    sent.advance(step, batch);
  }
  int64_t next_angles = turns ? angles.place(turned_next) : 0;
  float sums[2][summed ? V : 1] = {};
  T* to = static_cast<T*>(args.out) + first * int64_t{width} + unit.column;
  int stage = 0;
  for (int token = first; token < tokens; token += step.token, to += step.token * int64_t{width}) {
    pipe.fetch((stage + Pipe::stages - 1) % Pipe::stages, sent);
    sent.advance(step, batch);
    AnglesOfToken now;
    if (turns) {
      now.read(angles, next_angles);
      turned_next.advance(step, batch);
      next_angles = angles.place(turned_next);
    }
    await_copy_groups<Pipe::stages - 1>();
    float low[V], high[V];
    pipe.read(stage, low, high);
    if (turns) now.turn_back(low, high);
    if (!stays) {
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
    stage = (stage + 1) % Pipe::stages;
  }
  if constexpr (summed) {
    float* const sum = static_cast<float*>(args.sum.partial) + first * int64_t{width} + unit.column;
    store_values(sum, sums[0]);
    store_values(sum + half, sums[1]);
  }
}

template <typename T>
void launch(const MergeQkvArgs& args, const Tiling& t, cudaStream_t stream) {
  const bool turned = args.cos != nullptr, summed = args.sum.partial != nullptr;
  const auto kernel = turned ? (summed ? merge_kernel<T, true, true> : merge_kernel<T, true, false>)
                             : (summed ? merge_kernel<T, false, true> : merge_kernel<T, false, false>);
  kernel<<<t.grid, t.block, 0, stream>>>(args);
  check_launch("merge_qkv");
}

Tiling tiles(const MergeQkvArgs& args) {
  // As many blocks as run at once: each leaves partial sums.
  return tile_rows(args.groups * args.per_group * args.channels / 2 / V, args.length * args.batch,
                   blocks_per_multiprocessor);
}

bool in_packs(const MergeQkvArgs& args, const QkvPart& part) {
  constexpr int64_t most = int64_t{1} << 31;  // offsets are counted in 32 bits
  return args.length * part.stride_s + args.batch * part.stride_b < most && part.stride_s % V == 0 &&
         part.stride_b % V == 0 && part.stride_group % V == 0 && part.stride_head % V == 0;
}

}  // namespace

bool can_merge_qkv(const MergeQkvArgs& args) {
  constexpr int64_t most = int64_t{1} << 30;  // tokens are counted in 32 bits, with those past the last
  return (args.dtype == Dtype::bf16 || args.dtype == Dtype::f16) && args.channels % (2 * V) == 0 &&
         args.length * args.batch < most && in_packs(args, args.q) && in_packs(args, args.k) &&
         in_packs(args, args.v) &&
         aligned(args.q.data, args.k.data, args.v.data, args.out, args.cos, args.sin);
}

int64_t merge_qkv_partials(const MergeQkvArgs& args) {
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
  if (args.sum.partial == nullptr) return;
  add_partials<float>({.sums = {args.sum},
                       .count = merge_qkv_partials(args),
                       .width = args.groups * args.per_group * args.channels},
                      stream);
}

}  // namespace teratron::cuda
