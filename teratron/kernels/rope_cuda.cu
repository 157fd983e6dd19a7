#include "teratron/kernels/device.cuh"
#include "teratron/kernels/rope_cuda.h"

namespace teratron::cuda {
namespace {

/// One block per token; a thread rotates V pairs of channels in several heads with the same cosines. V pairs
/// are two packs of V: (a, b) halves, or the first and second V of 2V interleaved neighbours.
template <typename T, int V, bool interleaved>
__global__ void __launch_bounds__(512) rope_kernel(RopeArgs args) {
  using A = Accumulator<T>;
  const int64_t s = blockIdx.x / args.batch, b = blockIdx.x % args.batch;
  const int half = static_cast<int>(args.rotated / 2), packs = half / V;
  const int j = threadIdx.x % packs, lanes = blockDim.x / packs;
  const int heads = static_cast<int>(args.outer * args.inner), inner = static_cast<int>(args.inner);
  const int64_t position = args.positions[s * args.position_stride_s + b * args.position_stride_b];
  const Pack<A, V> cos = load<V>(static_cast<const A*>(args.cos) + position * half + j * V);
  Pack<A, V> sin = load<V>(static_cast<const A*>(args.sin) + position * half + j * V);
#pragma unroll
  for (int i = 0; i < V; ++i) sin.v[i] = args.inverse ? -sin.v[i] : sin.v[i];
  const int first = interleaved ? 2 * j * V : j * V;
  const int second = interleaved ? first + V : first + half;
  const T* const in = static_cast<const T*>(args.in) + s * args.in_strides.s + b * args.in_strides.b;
  T* const out = static_cast<T*>(args.out) + s * args.out_strides.s + b * args.out_strides.b;
  if (static_cast<int>(threadIdx.x) >= packs * lanes) return;
#pragma unroll 2
  for (int head = threadIdx.x / packs; head < heads; head += lanes) {
    const T* const from = in + head / inner * args.in_strides.outer + head % inner * args.in_strides.inner;
    T* const to = out + head / inner * args.out_strides.outer + head % inner * args.out_strides.inner;
    Pack<T, V> low = load<V>(from + first), high = load<V>(from + second);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      // Pair i: halves (low[i], high[i]); interleaved (v[2i], v[2i + 1]) of the 2V neighbours.
      T& a = interleaved ? (2 * i < V ? low.v[(2 * i) % V] : high.v[(2 * i) % V]) : low.v[i];
      T& c = interleaved ? (2 * i + 1 < V ? low.v[(2 * i + 1) % V] : high.v[(2 * i + 1) % V]) : high.v[i];
      const A x = widen(a), y = widen(c);
      a = round_to<T>(x * cos.v[i] - y * sin.v[i]);
      c = round_to<T>(y * cos.v[i] + x * sin.v[i]);
    }
    store<V>(to + first, low);
    store<V>(to + second, high);
  }
}

/// The channels that are not rotated, when the result lies elsewhere, in packs of V. One block per token.
template <typename T, int V>
__global__ void __launch_bounds__(256) copy_rest(RopeArgs args) {
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
  const unsigned tokens = static_cast<unsigned>(args.length * args.batch);
  const int64_t packs = args.rotated / 2 / V, items = packs * args.outer * args.inner;
  const int64_t lanes = packs > 256 ? 1 : (items < 256 ? items : 256) / packs;
  const unsigned threads = static_cast<unsigned>(ceil_div(packs * lanes, 32) * 32);
  if (args.interleaved) {
    rope_kernel<T, V, true><<<tokens, threads, 0, stream>>>(args);
  } else {
    rope_kernel<T, V, false><<<tokens, threads, 0, stream>>>(args);
  }
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
      const auto copy = in_packs ? copy_rest<T, V> : copy_rest<T, 1>;
      copy<<<static_cast<unsigned>(args.length * args.batch), 256, 0, stream>>>(args);
      check_launch("rope");
    }
  });
}

}  // namespace teratron::cuda
