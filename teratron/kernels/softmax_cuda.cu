#include "teratron/kernels/device.cuh"
#include "teratron/kernels/dropout_cuda.h"
#include "teratron/kernels/dropout_device.cuh"

namespace teratron::cuda {
namespace {

/// The row of scores of this block: which keys it may see.
struct Row {
  int64_t start;  // of the row in the scores
  int64_t head;
  int64_t own_place;  // the key at the query's own place
  int64_t limit;      // keys from here on are masked by causality
  const bool* masked;
  int64_t masked_stride;

  __device__ explicit Row(const SoftmaxArgs& args) {
    const int64_t row = blockIdx.x;
    const int64_t query = row % args.queries;
    const int64_t batch = row / args.queries / args.heads;
    head = row / args.queries % args.heads;
    start = row * args.keys;
    own_place = query + args.keys - args.queries;
    limit = args.causal ? max(int64_t{0}, min(args.keys, own_place + 1)) : args.keys;
    masked = args.masked;
    if (masked != nullptr) {
      masked +=
          batch * args.masked_strides[0] + head * args.masked_strides[1] + query * args.masked_strides[2];
    }
    masked_stride = args.masked_strides[3];
  }
  __device__ bool allows(int64_t key) const {
    return key < limit && (masked == nullptr || !masked[key * masked_stride]);
  }
};

/// Scaled and biased scores of a pack; -inf where the key is not allowed.
template <typename T, int N, typename A>
__device__ void read_scores(const SoftmaxArgs& args, const Row& row, int64_t key, A (&x)[N]) {
  const Pack<T, N> pack = load<N>(static_cast<const T*>(args.in) + row.start + key);
  const A scale = static_cast<A>(args.scale);
  const A slope = args.slopes == nullptr ? A(0) : static_cast<const A*>(args.slopes)[row.head];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const A bias = slope * static_cast<A>(key + i - row.own_place);
    x[i] = row.allows(key + i) ? widen(pack.v[i]) * scale + bias : A(-INFINITY);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(256) forward_kernel(SoftmaxArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[64];
  const Row row(args);
  RunningSoftmax<A> statistics;
#pragma unroll 2
  for (int64_t key = threadIdx.x * N; key < row.limit; key += blockDim.x * N) {
    A x[N];
    read_scores<T, N>(args, row, key, x);
    statistics.add(x);
  }
  block_merge(statistics, shared);
  const A factor = statistics.sum == A(0) ? A(0) : A(1) / statistics.sum;
  const uint64_t index = args.out == nullptr ? 0 : args.mask.row_start(blockIdx.x);
#pragma unroll 2
  for (int64_t key = threadIdx.x * N; key < args.keys; key += blockDim.x * N) {
    A x[N] = {};
    if (key < row.limit) {
      read_scores<T, N>(args, row, key, x);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = factor == A(0) ? A(0) : fast_exp(x[i] - statistics.max) * factor;
    }
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = round_to<T>(x[i]);
    store<N>(static_cast<T*>(args.probabilities) + row.start + key, pack);
    if (args.out == nullptr) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = widen(pack.v[i]);
    apply_mask(args.mask, index + key, x);
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = round_to<T>(x[i]);
    store<N>(static_cast<T*>(args.out) + row.start + key, pack);
  }
}

/// Probabilities and masked incoming gradients of a pack.
template <typename T, int N, typename A>
__device__ void read_gradients(const SoftmaxArgs& args, int64_t offset, uint64_t index, A (&p)[N],
                               A (&g)[N]) {
  const Pack<T, N> probabilities = load<N>(static_cast<const T*>(args.saved) + offset);
  const Pack<T, N> dy = load<N>(static_cast<const T*>(args.in) + offset);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    p[i] = widen(probabilities.v[i]);
    g[i] = widen(dy.v[i]);
  }
  if (args.mask.threshold != 0) apply_mask(args.mask, index, g);
}

template <typename T, int N>
__global__ void __launch_bounds__(256) backward_kernel(SoftmaxArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[32];
  const Row row(args);
  const uint64_t index = args.mask.threshold == 0 ? 0 : args.mask.row_start(blockIdx.x);
  A sum[1] = {0};
  for (int64_t key = threadIdx.x * N; key < row.limit; key += blockDim.x * N) {
    A p[N], g[N];
    read_gradients<T, N>(args, row.start + key, index + key, p, g);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[0] += p[i] * g[i];
  }
  block_sum(sum, shared);
  const A scale = static_cast<A>(args.scale);
  for (int64_t key = threadIdx.x * N; key < args.keys; key += blockDim.x * N) {
    A p[N] = {}, g[N] = {};
    if (key < row.limit) read_gradients<T, N>(args, row.start + key, index + key, p, g);
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = round_to<T>(scale * p[i] * (g[i] - sum[0]));
    store<N>(static_cast<T*>(args.out) + row.start + key, pack);
  }
}

enum class Pass { forward, backward };

template <typename T, int N>
void launch(Pass pass, const SoftmaxArgs& args, cudaStream_t stream) {
  const unsigned rows = static_cast<unsigned>(args.batch * args.heads * args.queries);
  const int64_t packs = ceil_div(args.keys, N);
  const unsigned threads = static_cast<unsigned>(packs >= 256 ? 256 : ceil_div(packs, 32) * 32);
  if (pass == Pass::forward) {
    forward_kernel<T, N><<<rows, threads, 0, stream>>>(args);
  } else {
    backward_kernel<T, N><<<rows, threads, 0, stream>>>(args);
  }
  check_launch("softmax");
}

void dispatch(Pass pass, const SoftmaxArgs& args, cudaStream_t stream) {
  with_device_type(args.dtype, [&]<typename T>(T) {
    if (args.keys % pack_size<T> == 0 && aligned(args.in, args.saved, args.probabilities, args.out)) {
      launch<T, pack_size<T>>(pass, args, stream);
    } else {
      launch<T, 1>(pass, args, stream);
    }
  });
}

}  // namespace

void softmax_forward(const SoftmaxArgs& args, CUstream_st* stream) {
  dispatch(Pass::forward, args, stream);
}
void softmax_backward(const SoftmaxArgs& args, CUstream_st* stream) {
  dispatch(Pass::backward, args, stream);
}

}  // namespace teratron::cuda
