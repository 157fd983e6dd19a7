// RoPE (rope.h): (a, b) <- (a cos - b sin, b cos + a sin) of every pair of channels, with the angles of the
// token's position; backward rotates by the negative angle.
// A block has a row of threads for each of its tokens. A thread keeps the angles of some pairs in registers
// and rotates them in one head after the other, four heads in flight.
// Bytes: x is read and written once; angles once per token. One H200: 0.87 of a copy (halves), 0.82
// (interleaved).
#include <algorithm>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {
namespace {

constexpr int max_threads = 256, heads_in_flight = 4;

/// cos and sin of V pairs of channels at a token.
template <typename A, int V>
struct RopeAngles {
  Pack<A, V> cos, sin;

  __device__ RopeAngles(const RopeArgs& args, int64_t s, int64_t b, unsigned pack) {
    const int64_t position = args.positions[s * args.position_stride_s + b * args.position_stride_b];
    const int64_t place = position * (args.rotated / 2) + pack * V;
    cos = load<V>(static_cast<const A*>(args.cos) + place);
    sin = load<V>(static_cast<const A*>(args.sin) + place);
#pragma unroll
    for (int i = 0; i < V; ++i) sin.v[i] = args.inverse ? -sin.v[i] : sin.v[i];
  }
  __device__ void rotate(int i, A& a, A& b) const {
    const A x = a, y = b;
    a = x * cos.v[i] - y * sin.v[i];
    b = y * cos.v[i] + x * sin.v[i];
  }
};

/// A row of threads per token; a thread rotates V pairs of channels, heads_in_flight heads at a time, with
/// the same angles. V pairs are two packs of V: (a, b) halves, or the first and second V of 2V interleaved
/// neighbors.
template <typename T, int V, bool interleaved>
__global__ void __launch_bounds__(2 * max_threads) rope_kernel(RopeArgs args) {
  using A = Accumulator<T>;
  constexpr int R = heads_in_flight;
  const unsigned token = blockIdx.x * blockDim.y + threadIdx.y, batch = static_cast<unsigned>(args.batch);
  const int64_t s = token / batch, b = token % batch;
  const unsigned half = static_cast<unsigned>(args.rotated / 2), packs = half / V;
  const unsigned j = threadIdx.x % packs, lanes = blockDim.x / packs;
  const unsigned heads = static_cast<unsigned>(args.outer * args.inner),
                 inner = static_cast<unsigned>(args.inner);
  if (s >= args.length) return;
  const unsigned first = interleaved ? 2 * j * V : j * V;
  const unsigned second = interleaved ? first + V : first + half;
  const T* const in = static_cast<const T*>(args.in) + s * args.in_strides.s + b * args.in_strides.b;
  T* const out = static_cast<T*>(args.out) + s * args.out_strides.s + b * args.out_strides.b;
  Pack<T, V> low[R], high[R];
  const auto each_head = [&](unsigned head, auto&& f) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const unsigned n = head + r * lanes;
      if (n < heads) f(r, n / inner, n % inner);
    }
  };
  const auto read = [&](unsigned head) {
    each_head(head, [&](int r, unsigned outer_head, unsigned inner_head) {
      const T* const from = in + outer_head * args.in_strides.outer + inner_head * args.in_strides.inner;
      low[r] = load<V>(from + first);
      high[r] = load<V>(from + second);
    });
  };
  unsigned head = threadIdx.x / packs;
  read(head);  // in flight while the angles load
  const RopeAngles<A, V> angles(args, s, b, j);
  while (true) {
    each_head(head, [&](int r, unsigned outer_head, unsigned inner_head) {
      A x[2][V];
      widen(low[r], x[0]);
      widen(high[r], x[1]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        // Pair i: halves (low[i], high[i]); interleaved (v[2i], v[2i + 1]) of the 2V neighbors.
        if constexpr (interleaved) {
          angles.rotate(i, x[2 * i / V][2 * i % V], x[(2 * i + 1) / V][(2 * i + 1) % V]);
        } else {
          angles.rotate(i, x[0][i], x[1][i]);
        }
      }
      T* const to = out + outer_head * args.out_strides.outer + inner_head * args.out_strides.inner;
      store<V>(to + first, round_to_pack<T>(x[0]));
      store<V>(to + second, round_to_pack<T>(x[1]));
    });
    head += R * lanes;
    if (head >= heads) return;
    read(head);
  }
}

/// Copies the channels that are not rotated, if out of place, in packs of V. One block per token.
template <typename T, int V>
__global__ void __launch_bounds__(256) copy_unrotated_kernel(RopeArgs args) {
  const int64_t s = blockIdx.x / args.batch, b = blockIdx.x % args.batch;
  const int inner = static_cast<int>(args.inner);
  const int packs = static_cast<int>(args.channels - args.rotated) / V;
  const int count = static_cast<int>(args.outer) * inner * packs;
  const T* const in =
      static_cast<const T*>(args.in) + s * args.in_strides.s + b * args.in_strides.b + args.rotated;
  T* const out = static_cast<T*>(args.out) + s * args.out_strides.s + b * args.out_strides.b + args.rotated;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int head = i / packs, channel = i % packs * V;
    const int64_t from = head / inner * args.in_strides.outer + head % inner * args.in_strides.inner;
    const int64_t to = head / inner * args.out_strides.outer + head % inner * args.out_strides.inner;
    store<V>(out + to + channel, load<V>(in + from + channel));
  }
}

template <typename T, int V>
void launch(const RopeArgs& args, cudaStream_t stream) {
  const int64_t packs = args.rotated / 2 / V,
                lanes_needed = ceil_div(args.outer * args.inner, heads_in_flight);
  const int64_t lanes = std::clamp<int64_t>(lanes_needed, 1, std::max<int64_t>(1, max_threads / packs));
  const unsigned x = static_cast<unsigned>(packs * lanes), y = max_threads / x > 1 ? max_threads / x : 1;
  const auto blocks = static_cast<unsigned>(ceil_div(args.length * args.batch, y));
  const auto kernel = args.interleaved ? rope_kernel<T, V, true> : rope_kernel<T, V, false>;
  kernel<<<blocks, dim3(x, y), 0, stream>>>(args);
}

bool divisible(const RopeStrides& s, int64_t pack) {
  return s.s % pack == 0 && s.b % pack == 0 && s.outer % pack == 0 && s.inner % pack == 0;
}

}  // namespace

void rope(const RopeArgs& args, CUstream_st* stream) {
  with_device_type(args.dtype, [&]<typename T>(T) {
    constexpr int V = pack_size<T>;
    const bool in_packs = args.rotated / 2 % V == 0 && args.channels % V == 0 &&
                          divisible(args.in_strides, V) && divisible(args.out_strides, V) &&
                          aligned(args.in, args.out, args.cos, args.sin);
    if (args.rotated > 0) {
      if (in_packs) {
        launch<T, V>(args, stream);
      } else {
        launch<T, 1>(args, stream);
      }
      check_launch("rope");
    }
    if (args.in != args.out && args.rotated < args.channels) {
      const auto copy = in_packs ? copy_unrotated_kernel<T, V> : copy_unrotated_kernel<T, 1>;
      copy<<<static_cast<unsigned>(args.length * args.batch), 256, 0, stream>>>(args);
      check_launch("rope");
    }
  });
}

}  // namespace teratron::cuda
