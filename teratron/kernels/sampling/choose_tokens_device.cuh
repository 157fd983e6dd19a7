// What the kernels of choose_tokens.h share: a row of logits and which of its tokens are drawn from.
#pragma once

#include "teratron/kernels/common/dependent_launch.cuh"
#include "teratron/kernels/sampling/launchers.h"

namespace teratron::cuda {

inline constexpr int threads = 256, parts = choose_tokens_parts;

/// Larger for larger logits.
__device__ inline uint32_t order_of(float logit) {
  const uint32_t bits = __float_as_uint(logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// Bits of order_of() that tell the logits of T apart end here.
template <typename T>
inline constexpr int order_shift = sizeof(T) == 2 ? 10 : 0;

/// A row of logits and how it is used.
template <typename T>
struct Row {
  const T* logits;
  double temperature, top_p, uniform;
  int top_k;
  bool greedy;
  int banned, vocabulary, per_part;

  __device__ Row(const ChooseTokensArgs& args, int row)
      : logits(static_cast<const T*>(args.logits) + row * args.row_stride),
        vocabulary(args.vocabulary),
        per_part((args.vocabulary + parts - 1) / parts) {
    const double* const p = args.parameters + 5 * row;
    temperature = p[0];
    greedy = !args.samples || p[1] == 1.0;
    top_k = static_cast<int>(fmin(p[1], static_cast<double>(INT32_MAX)));
    top_p = p[2];
    uniform = p[3];
    banned = static_cast<int>(p[4]);
  }
  __device__ float logit(int id) const { return id == banned ? -1e10f : widen(logits[id]); }
  __device__ uint32_t order(int id) const { return order_of(logit(id)) >> order_shift<T>; }
  __device__ bool filters() const { return !greedy && (top_k > 1 || top_p > 0.0); }
  __device__ int begin(int part) const { return min(part * per_part, vocabulary); }
  __device__ int end(int part) const { return min((part + 1) * per_part, vocabulary); }
};

struct Best {
  float logit;
  int id;

  __device__ void take(const Best& other) {
    if (other.logit > logit || (other.logit == logit && other.id < id)) *this = other;
  }
};

/// The best of the block, in every thread.
__device__ inline Best block_best(Best best) {
  __shared__ Best of_warp[threads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    best.take(
        {__shfl_xor_sync(0xFFFFFFFFu, best.logit, offset), __shfl_xor_sync(0xFFFFFFFFu, best.id, offset)});
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
  __syncthreads();
  for (const Best& other : of_warp) best.take(other);
  return best;
}

/// Sums over a part of the vocabulary, relative to its best logit.
struct Part {
  double logit, id;
  double sum;        // of exp((x - logit) / temperature)
  double plain_sum;  // of exp(x - logit)
};

/// The best of a row's parts.
__device__ inline Best best_of(const Part* of_row) {
  Best best{-INFINITY, INT32_MAX};
  for (int i = 0; i < parts; ++i)
    best.take({static_cast<float>(of_row[i].logit), static_cast<int>(of_row[i].id)});
  return best;
}

/// The sums before those of each thread, in order.
template <typename A>
__device__ A sum_before(A own) {
  __shared__ A of_thread[threads];
  of_thread[threadIdx.x] = own;
  __syncthreads();
  A before = 0;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) before += of_thread[t];
  __syncthreads();
  return before;
}

/// The ids of a part that a thread has, in the order of the threads.
struct Range {
  int first, last;

  template <typename T>
  __device__ Range(const Row<T>& row, int part) {
    const int begin = row.begin(part), end = row.end(part), each = (end - begin + threads - 1) / threads;
    first = min(begin + static_cast<int>(threadIdx.x) * each, end);
    last = min(first + each, end);
  }
};

}  // namespace teratron::cuda
