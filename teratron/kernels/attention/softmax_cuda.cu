// Softmax of a row of scores with scale, ALiBi, masks and dropout (softmax.h):
//   p_j = exp(s_j - M) / sum_k exp(s_k - M), y_j = keep_j p_j / (1 - p_drop)
//   backward: ds_j = scale p_j (dp_j - sum_k dp_k p_k)
// One block per row. A thread has the packs t, t + n, ... of the keys, in registers if there are at most
// four; longer rows are read again in every pass. Keys beyond the causal limit are not read.
// Bytes: scores are read once and p (with dropout also y) is written once. One H200: 0.74 of a copy, with
// dropout 0.69 forward and 0.54 backward, where most instructions are Philox.
#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {
namespace {

constexpr int max_threads = 256, packs_in_registers = 4;

/// The row of scores of this block and its visible keys.
struct Row {
  int64_t start;  // of the row in the scores
  int head;
  int diagonal;  // the key at the query's position
  int limit;     // keys from here on are masked by causality
  const bool* masked;
  int64_t masked_stride;

  __device__ explicit Row(const SoftmaxArgs& args) {
    const int row = blockIdx.x, queries = static_cast<int>(args.queries), keys = static_cast<int>(args.keys);
    const int query = row % queries, batch = row / queries / static_cast<int>(args.heads);
    head = row / queries % static_cast<int>(args.heads);
    start = row * args.keys;
    diagonal = query + keys - queries;
    limit = args.causal ? max(0, min(keys, diagonal + 1)) : keys;
    masked = args.masked;
    if (masked != nullptr) {
      masked +=
          batch * args.masked_strides[0] + head * args.masked_strides[1] + query * args.masked_strides[2];
    }
    masked_stride = args.masked_strides[3];
  }
  __device__ bool allows(int key) const {
    return key < limit && (masked == nullptr || !masked[key * masked_stride]);
  }
  /// Whether all N keys are known to be allowed.
  template <int N>
  __device__ bool allows_all(int key) const {
    return key + N <= limit && masked == nullptr;
  }
};

/// Scaled and biased scores of a pack; -inf if the key is not allowed.
template <typename T, int N, typename A>
__device__ void read_scores(const SoftmaxArgs& args, const Row& row, int key, A (&x)[N]) {
  widen(load<N>(static_cast<const T*>(args.in) + row.start + key), x);
  const A scale = static_cast<A>(args.scale);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] *= scale;
  if (args.slopes != nullptr) {
    const A slope = static_cast<const A*>(args.slopes)[row.head];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += slope * static_cast<A>(key + i - row.diagonal);
  }
  if (row.allows_all<N>(key)) return;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = row.allows(key + i) ? x[i] : A(-INFINITY);
}

/// x[i] <- kept ? x[i] / (1 - p) : 0, for the keys key, key + 1, ... of this block's row; key is a multiple
/// of N, a power of two.
template <int N, typename A>
__device__ void apply_dropout(const ScoreDropout& dropout, int key, A (&x)[N]) {
  const uint64_t start = dropout.row_start(blockIdx.x);
  const A scale = static_cast<A>(dropout.scale);
  const int word = score_word(key);
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const PhiloxWords words = dropout.words(start, score_draw(key + i));
    const uint32_t low = word % 2 == 0 ? words.word[0] : words.word[1];
    const uint32_t high = word % 2 == 0 ? words.word[2] : words.word[3];
#pragma unroll
    for (int c = 0; c < 2 && c < N; ++c) {
      const bool kept = dropout.keeps(word < 2 ? low : high, N == 1 ? key % 2 : c);
      x[i + c] = kept ? x[i + c] * scale : A(0);
    }
  }
}

/// Writes the probabilities of a pack, and y after dropout.
template <typename T, int N, typename A>
__device__ void write_probabilities(const SoftmaxArgs& args, const Row& row, int key, A (&p)[N]) {
  const Pack<T, N> pack = round_to_pack<T>(p);
  store<N>(static_cast<T*>(args.probabilities) + row.start + key, pack);
  if (args.out == nullptr) return;
  widen(pack, p);
  if (key < row.limit) apply_dropout(args.dropout, key, p);
  store<N>(static_cast<T*>(args.out) + row.start + key, round_to_pack<T>(p));
}

/// The first key of this thread's pack c.
template <int N>
__device__ int key_of(int c) {
  return (c * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
}

/// One block per row. C > 0: a thread keeps at most C packs in registers; C = 0: any number, re-read in every
/// pass. The backward likewise.
template <typename T, int N, int C>
__global__ void __launch_bounds__(max_threads) forward_kernel(SoftmaxArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[64];
  const Row row(args);
  if constexpr (C > 0) {
    A x[C][N], most = -INFINITY, sum[1] = {0};
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (key_of<N>(c) >= row.limit) continue;
      read_scores<T, N>(args, row, key_of<N>(c), x[c]);
#pragma unroll
      for (int i = 0; i < N; ++i) most = max(most, x[c][i]);
    }
    block_max(most, shared);
    const A base = most == -INFINITY ? A(0) : most;  // so that -inf contributes 0 and NaN propagates
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (key_of<N>(c) >= row.limit) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        x[c][i] = fast_exp(x[c][i] - base);
        sum[0] += x[c][i];
      }
    }
    block_sum(sum, shared + 32);
    const A factor = sum[0] == A(0) ? A(0) : A(1) / sum[0];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int key = key_of<N>(c);
      if (key >= static_cast<int>(args.keys)) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) x[c][i] = key < row.limit ? x[c][i] * factor : A(0);
      write_probabilities<T, N>(args, row, key, x[c]);
    }
  } else {
    OnlineSoftmax<A> statistics;
    for (int key = key_of<N>(0); key < row.limit; key += blockDim.x * N) {
      A x[N];
      read_scores<T, N>(args, row, key, x);
      statistics.add(x);
    }
    block_merge(statistics, shared);
    const A factor = statistics.sum == A(0) ? A(0) : A(1) / statistics.sum;
    for (int key = key_of<N>(0); key < static_cast<int>(args.keys); key += blockDim.x * N) {
      A x[N] = {};
      if (key < row.limit) {
        read_scores<T, N>(args, row, key, x);
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = factor == A(0) ? A(0) : fast_exp(x[i] - statistics.max) * factor;
      }
      write_probabilities<T, N>(args, row, key, x);
    }
  }
}

/// Probabilities of a pack and its output gradients after the dropout mask.
template <typename T, int N, typename A>
__device__ void read_gradients(const SoftmaxArgs& args, const Row& row, int key, A (&p)[N], A (&g)[N]) {
  widen(load<N>(static_cast<const T*>(args.saved) + row.start + key), p);
  widen(load<N>(static_cast<const T*>(args.in) + row.start + key), g);
  if (args.dropout.threshold != 0) apply_dropout(args.dropout, key, g);
}

template <typename T, int N, int C>
__global__ void __launch_bounds__(max_threads) backward_kernel(SoftmaxArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[32];
  const Row row(args);
  A sum[1] = {0}, saved_p[C > 0 ? C : 1][N], saved_g[C > 0 ? C : 1][N];
  const auto add = [&](int key, A(&p)[N], A(&g)[N]) {
    if (key >= row.limit) return;
    read_gradients<T, N>(args, row, key, p, g);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[0] += p[i] * g[i];
  };
  const A scale = static_cast<A>(args.scale);
  const auto write = [&](int key, A(&p)[N], A(&g)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = key < row.limit ? scale * p[i] * (g[i] - sum[0]) : A(0);
    store<N>(static_cast<T*>(args.out) + row.start + key, round_to_pack<T>(p));
  };
  if constexpr (C > 0) {
#pragma unroll
    for (int c = 0; c < C; ++c) add(key_of<N>(c), saved_p[c], saved_g[c]);
    block_sum(sum, shared);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (key_of<N>(c) < static_cast<int>(args.keys)) write(key_of<N>(c), saved_p[c], saved_g[c]);
    }
  } else {
    for (int key = key_of<N>(0); key < row.limit; key += blockDim.x * N) add(key, saved_p[0], saved_g[0]);
    block_sum(sum, shared);
    for (int key = key_of<N>(0); key < static_cast<int>(args.keys); key += blockDim.x * N) {
      if (key < row.limit) read_gradients<T, N>(args, row, key, saved_p[0], saved_g[0]);
      write(key, saved_p[0], saved_g[0]);
    }
  }
}

enum class Pass { forward, backward };

template <typename T, int N, int C>
void launch(Pass pass, const SoftmaxArgs& args, int64_t threads, cudaStream_t stream) {
  const unsigned rows = static_cast<unsigned>(args.batch * args.heads * args.queries);
  const auto kernel = pass == Pass::forward ? forward_kernel<T, N, C> : backward_kernel<T, N, C>;
  kernel<<<rows, static_cast<unsigned>(threads), 0, stream>>>(args);
  check_launch("softmax");
}

/// Small blocks, one per row: while one waits for its reductions, others on the SM load.
template <typename T, int N>
void launch(Pass pass, const SoftmaxArgs& args, cudaStream_t stream) {
  const int64_t packs = ceil_div(args.keys, N), threads = ceil_div(packs, 32 * packs_in_registers) * 32;
  if (threads <= max_threads) {
    launch<T, N, packs_in_registers>(pass, args, threads, stream);
  } else {
    launch<T, N, 0>(pass, args, max_threads, stream);
  }
}

void dispatch(Pass pass, const SoftmaxArgs& args, cudaStream_t stream) {
  with_pack(args.dtype, args.keys, aligned(args.in, args.saved, args.probabilities, args.out),
            [&]<typename T>(T, auto pack) { launch<T, pack.value>(pass, args, stream); });
}

}  // namespace

void softmax_forward(const SoftmaxArgs& args, CUstream_st* stream) {
  dispatch(Pass::forward, args, stream);
}
void softmax_backward(const SoftmaxArgs& args, CUstream_st* stream) {
  dispatch(Pass::backward, args, stream);
}

}  // namespace teratron::cuda
