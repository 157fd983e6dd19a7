#include "teratron/kernels/async_copy.cuh"
#include "teratron/kernels/partials.cuh"
#include "teratron/kernels/qkv_cuda.h"
#include "teratron/kernels/tiling.cuh"

namespace teratron::cuda {
namespace {

constexpr int V = 8;  // elements of a 16-byte pack
constexpr int max_threads = 256, blocks_per_multiprocessor = 3;

/// A thread owns a pack in the first half of a head's channels and its partner in the second, and walks down the
/// tokens.
template <typename T>
struct Unit {
  const T* from;  // at the first token
  int64_t stride_s, stride_b;
  int64_t column;  // of what it writes, in elements
  int pack;        // in the half
  bool turned;

  __device__ Unit(const MergeQkvArgs& args, int64_t index) {
    const int packs = static_cast<int>(args.channels / 2 / V);
    const int head = static_cast<int>(index) / packs, per_group = static_cast<int>(args.per_group);
    const int group = head / per_group, place = head % per_group;
    const QkvPart& part = place < per_group - 2 ? args.q : place == per_group - 2 ? args.k : args.v;
    pack = static_cast<int>(index) % packs;
    from = static_cast<const T*>(part.data) + group * part.stride_group +
           (place < per_group - 2 ? place * part.stride_head : 0) + pack * V;
    stride_s = part.stride_s;
    stride_b = part.stride_b;
    column = head * args.channels + pack * V;
    turned = args.cos != nullptr && place < per_group - 1;
  }
};

/// The angles of a thread's pack at a token.
struct Angles {
  Pack<float, 4> cos[V / 4], sin[V / 4];

  __device__ void read(const MergeQkvArgs& args, int64_t place) {
#pragma unroll
    for (int i = 0; i < V / 4; ++i) {
      cos[i] = load<4>(args.cos + place + 4 * i);
      sin[i] = load<4>(args.sin + place + 4 * i);
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

/// A thread's tokens on their way through shared memory, which keeps more bytes in flight than registers could.
template <typename T>
struct TokenPipe {
  static constexpr int stages = 4;
  using Packs = Pack<T, V>[2][max_threads];

  const MergeQkvArgs& args;
  const Unit<T>& unit;
  Packs* const packs;  // [stages]
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;

  __device__ Pack<T, V>& at(int stage, int half) const { return packs[stage][half][thread]; }
  /// One copy group, empty past the last token.
  __device__ void fetch(int stage, const TokenCursor& at_token) const {
    if (at_token.s < args.length) {
      const T* const from = unit.from + at_token.s * unit.stride_s + at_token.b * unit.stride_b;
      copy_async(&at(stage, 0), from);
      copy_async(&at(stage, 1), from + args.channels / 2);
    }
    end_copy_group();
  }
  /// Where the angles of a token lie; of one past the last, anywhere.
  __device__ int64_t place_of_angles(const TokenCursor& at_token) const {
    if (!unit.turned || at_token.s >= args.length) return 0;
    const int64_t position = args.positions[at_token.s * args.position_stride_s + at_token.b * args.position_stride_b];
    return position * (args.channels / 2) + unit.pack * V;
  }
};

template <typename T, bool turned, bool summed>
__global__ void __launch_bounds__(max_threads, blocks_per_multiprocessor)
    merge_kernel(const __grid_constant__ MergeQkvArgs args) {
  using Pipe = TokenPipe<T>;
  __shared__ typename Pipe::Packs packs[Pipe::stages];
  const int64_t half = args.channels / 2, width = args.groups * args.per_group * args.channels;
  const int64_t index = tile_column<1>();
  if (index >= width / 2 / V) return;
  const Unit<T> unit(args, index);
  const Pipe pipe{args, unit, packs};
  const int tokens = static_cast<int>(args.length * args.batch), batch = static_cast<int>(args.batch);
  const int first = static_cast<int>(tile_first_row());
  const TokenCursor step(static_cast<int>(tile_row_step()), batch);
  TokenCursor sent(first, batch), turned_next(first, batch);
#pragma unroll
  for (int stage = 0; stage < Pipe::stages - 1; ++stage) {
    pipe.fetch(stage, sent);
    sent.advance(step, batch);
  }
  int64_t next_angles = turned ? pipe.place_of_angles(turned_next) : 0;
  float sums[2][summed ? V : 1] = {};
  int stage = 0;
  for (int token = first; token < tokens; token += step.token) {
    pipe.fetch((stage + Pipe::stages - 1) % Pipe::stages, sent);
    sent.advance(step, batch);
    Angles angles;
    if constexpr (turned) {
      if (unit.turned) angles.read(args, next_angles);
      turned_next.advance(step, batch);
      next_angles = pipe.place_of_angles(turned_next);
    }
    await_copy_groups<Pipe::stages - 1>();
    float low[V], high[V];
    widen(pipe.at(stage, 0), low);
    widen(pipe.at(stage, 1), high);
    if constexpr (turned) {
      if (unit.turned) angles.turn_back(low, high);
    }
    T* const to = static_cast<T*>(args.out) + token * width + unit.column;
    store<V>(to, round_to_pack<T>(low));
    store<V>(to + half, round_to_pack<T>(high));
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
    float* const to = args.partial + first * width + unit.column;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      to[i] = sums[0][i];
      to[half + i] = sums[1][i];
    }
  }
}

template <typename T>
void launch(const MergeQkvArgs& args, const Tiling& t, cudaStream_t stream) {
  const bool turned = args.cos != nullptr, summed = args.partial != nullptr;
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

bool in_packs(const QkvPart& part) {
  return part.stride_s % V == 0 && part.stride_b % V == 0 && part.stride_group % V == 0 &&
         part.stride_head % V == 0;
}

}  // namespace

bool can_merge_qkv(const MergeQkvArgs& args) {
  constexpr int64_t most = int64_t{1} << 30;  // tokens are counted in 32 bits, with those past the last
  return (args.dtype == Dtype::bf16 || args.dtype == Dtype::f16) && args.channels % (2 * V) == 0 &&
         args.length * args.batch < most && in_packs(args.q) && in_packs(args.k) && in_packs(args.v) &&
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
  if (args.partial == nullptr) return;
  add_partials<float>({.first = args.partial,
                       .second = nullptr,
                       .first_out = args.column_sum,
                       .second_out = nullptr,
                       .count = merge_qkv_partials(args),
                       .width = args.groups * args.per_group * args.channels},
                      stream);
}

}  // namespace teratron::cuda
