#include "teratron/kernels/partials.cuh"
#include "teratron/kernels/qkv_cuda.h"
#include "teratron/kernels/tiling.cuh"

namespace teratron::cuda {
namespace {

constexpr int V = 8;  // elements of a 16-byte pack

/// A thread owns a pack in the first half of a head's channels and its partner in the second, and walks down the
/// tokens.
struct Unit {
  const void* data;
  int64_t stride_s, stride_b;  // of what it reads
  int64_t column;              // of what it writes, in elements
  int64_t offset;              // of what it reads, in a token
  int pack;                    // in the half
  bool turned;

  __device__ Unit(const MergeQkvArgs& args, int64_t index) {
    const int packs = static_cast<int>(args.channels / 2 / V);
    const int head = static_cast<int>(index) / packs, per_group = static_cast<int>(args.per_group);
    const int group = head / per_group, place = head % per_group;
    const QkvPart& part = place < per_group - 2 ? args.q : place == per_group - 2 ? args.k : args.v;
    pack = static_cast<int>(index) % packs;
    data = part.data;
    stride_s = part.stride_s;
    stride_b = part.stride_b;
    offset = group * part.stride_group + (place < per_group - 2 ? place * part.stride_head : 0) + pack * V;
    column = head * args.channels + pack * V;
    turned = args.cos != nullptr && place < per_group - 1;
  }
  __device__ int64_t place(int s, int b) const { return s * stride_s + b * stride_b + offset; }
};

/// A token's two packs.
template <typename T>
struct Packs {
  Pack<T, V> low, high;
};

/// The same and where the angles of the token lie. They come from the cache when they are needed: in registers they would
/// leave fewer threads to wait for memory.
template <typename T>
struct TurnedPacks : Packs<T> {
  int64_t place;

  __device__ void turn_back(const MergeQkvArgs& args) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const Pack<float, 4> cos = load<4>(args.cos + place + i), sin = load<4>(args.sin + place + i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float a = widen(this->low.v[i + k]), b = widen(this->high.v[i + k]);
        this->low.v[i + k] = round_to<T>(a * cos.v[k] + b * sin.v[k]);
        this->high.v[i + k] = round_to<T>(b * cos.v[k] - a * sin.v[k]);
      }
    }
  }
};

template <typename T, bool turned, bool summed>
__global__ void __launch_bounds__(256, turned&& summed ? 2 : 3) merge_kernel(MergeQkvArgs args) {
  using In = std::conditional_t<turned, TurnedPacks<T>, Packs<T>>;
  const int64_t half = args.channels / 2, width = args.groups * args.per_group * args.channels;
  const int64_t index = tile_column<1>();
  if (index >= width / 2 / V) return;
  const Unit unit(args, index);
  const int batch = static_cast<int>(args.batch);
  float sums[2][summed ? V : 1] = {};
  walk_rows<2, In>(
      args.length * args.batch,
      [&](int64_t row, In& x) {
        const int s = static_cast<int>(row) / batch, b = static_cast<int>(row) % batch;
        const T* const from = static_cast<const T*>(unit.data) + unit.place(s, b);
        x.low = load<V>(from);
        x.high = load<V>(from + half);
        if constexpr (turned) {
          x.place =
              args.positions[s * args.position_stride_s + b * args.position_stride_b] * half + unit.pack * V;
        }
      },
      [&](int64_t row, In& x) {
        if constexpr (turned) {
          if (unit.turned) x.turn_back(args);
        }
        T* const to = static_cast<T*>(args.out) + row * width + unit.column;
        store<V>(to, x.low);
        store<V>(to + half, x.high);
        if constexpr (summed) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            sums[0][i] += widen(x.low.v[i]);
            sums[1][i] += widen(x.high.v[i]);
          }
        }
      });
  if constexpr (summed) {
    float* const to = args.partial + tile_first_row() * width + unit.column;
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
  return tile_rows(args.groups * args.per_group * args.channels / 2 / V, args.length * args.batch, 8);
}

bool in_packs(const QkvPart& part) {
  return part.stride_s % V == 0 && part.stride_b % V == 0 && part.stride_group % V == 0 &&
         part.stride_head % V == 0;
}

}  // namespace

bool can_merge_qkv(const MergeQkvArgs& args) {
  constexpr int64_t most = int64_t{1} << 31;  // tokens are counted in 32 bits
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
