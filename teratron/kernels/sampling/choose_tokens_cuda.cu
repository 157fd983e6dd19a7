// Two kernels: blocks reduce parts of the vocabulary; then a block per row combines them, and walks through
// the part in which the cumulative probability reaches the random number.
#include "teratron/kernels/common/dependent_launch.cuh"
#include "teratron/kernels/sampling/launchers.h"

namespace teratron::cuda {
namespace {

constexpr int threads = 256, parts = choose_tokens_parts;

/// A row of logits and how it is used.
template <typename T>
struct Row {
  const T* logits;
  double temperature, uniform;
  bool greedy;
  int banned, vocabulary, per_part;

  __device__ Row(const ChooseTokensArgs& args, int row)
      : logits(static_cast<const T*>(args.logits) + row * args.row_stride),
        vocabulary(args.vocabulary),
        per_part((args.vocabulary + parts - 1) / parts) {
    const double* const p = args.parameters + 5 * row;
    temperature = p[0];
    greedy = !args.samples || p[1] == 1.0;
    uniform = p[3];
    banned = static_cast<int>(p[4]);
  }
  __device__ float logit(int id) const { return id == banned ? -1e10f : widen(logits[id]); }
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

/// Of the block, in every thread.
__device__ Best block_best(Best best) {
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

/// Of a part of the vocabulary. Sums are relative to the best logit.
struct Part {
  double logit, id;
  double sum;        // of exp((x - logit) / temperature)
  double plain_sum;  // of exp(x - logit)
};

/// Block (part, row).
template <typename T>
__global__ void __launch_bounds__(threads) reduce_parts(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.y);
  const int begin = row.begin(blockIdx.x), end = row.end(blockIdx.x);
  Best best{-INFINITY, INT32_MAX};
  for (int id = begin + threadIdx.x; id < end; id += threads) best.take({row.logit(id), id});
  best = block_best(best);
  double sums[2] = {};
  if (best.logit > -INFINITY && (args.logprobs || !row.greedy)) {
    const double top = best.logit;
    for (int id = begin + threadIdx.x; id < end; id += threads) {
      const double x = row.logit(id) - top;
      if (!row.greedy) sums[0] += exp(x / row.temperature);
      if (args.logprobs) sums[1] += exp(x);
    }
  }
  __shared__ double shared[64];
  block_sum(sums, shared);
  if (threadIdx.x > 0) return;
  auto* const out = reinterpret_cast<Part*>(args.partial) + blockIdx.y * parts + blockIdx.x;
  *out = {best.logit, static_cast<double>(best.id), sums[0], sums[1]};
}

/// The sums before those of each thread, in order.
__device__ double sum_before(double own) {
  __shared__ double of_thread[threads];
  of_thread[threadIdx.x] = own;
  __syncthreads();
  double before = 0.0;
  for (int t = 0; t < threadIdx.x; ++t) before += of_thread[t];
  return before;
}

/// Where the sum of a row reaches its random number.
struct Crossing {
  int part;
  double top;             // the row's best logit
  double before, target;  // the sum before the part; what it reaches
};

/// The first id of a part at which the cumulative sum, from `before` on, reaches `target`; if none does, the
/// last of positive probability.
template <typename T>
__device__ int walk(const Row<T>& row, const Crossing& crossing) {
  __shared__ int found;
  const int part = crossing.part;
  const int begin = row.begin(part), end = row.end(part), each = (end - begin + threads - 1) / threads;
  const int first = min(begin + static_cast<int>(threadIdx.x) * each, end), last = min(first + each, end);
  const auto mass = [&row, best = crossing.top](int i) {
    return exp((row.logit(i) - best) / row.temperature);
  };
  double own = 0.0;
  for (int i = first; i < last; ++i) own += mass(i);
  double sum = crossing.before + sum_before(own);
  if (threadIdx.x == 0) found = INT32_MAX;
  __syncthreads();
  int last_possible = -1;
  for (int i = first; i < last; ++i) {
    const double more = mass(i);
    sum += more;
    if (more > 0.0) last_possible = i;
    if (sum >= crossing.target && more > 0.0) {
      atomicMin(&found, i);
      break;
    }
  }
  __syncthreads();
  if (found == INT32_MAX) {
    __syncthreads();
    if (threadIdx.x == 0) found = -1;
    __syncthreads();
    atomicMax(&found, last_possible);
    __syncthreads();
  }
  return found;
}

/// Block: row.
template <typename T>
__global__ void __launch_bounds__(threads) combine_parts(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.x);
  __shared__ Part all[parts];
  if (threadIdx.x < parts)
    all[threadIdx.x] = reinterpret_cast<const Part*>(args.partial)[blockIdx.x * parts + threadIdx.x];
  __syncthreads();
  Best best{-INFINITY, INT32_MAX};
  for (const Part& part : all) best.take({static_cast<float>(part.logit), static_cast<int>(part.id)});
  const double top = best.logit;
  int id = best.id == INT32_MAX ? 0 : best.id;  // no logit is a number
  if (!row.greedy && top > -INFINITY) {
    const auto mass = [&](const Part& part) {
      return part.logit > -INFINITY ? part.sum * exp((part.logit - top) / row.temperature) : 0.0;
    };
    double total = 0.0;
    for (const Part& part : all) total += mass(part);
    const double target = row.uniform * total;
    double before = 0.0, sum = 0.0;
    int chosen = 0;
    for (int i = 0; i < parts && sum < target; ++i) {
      const double more = mass(all[i]);
      if (more == 0.0) continue;
      before = sum;
      sum += more;
      chosen = i;
    }
    id = walk(row, {chosen, top, before, target});
  }
  double plain = 0.0;
  if (args.logprobs) {
    for (const Part& part : all)
      plain += part.logit > -INFINITY ? part.plain_sum * exp(part.logit - top) : 0.0;
  }
  if (threadIdx.x > 0) return;
  args.out[blockIdx.x] = id;
  args.out[args.rows + blockIdx.x] = args.logprobs ? row.logit(id) - top - log(plain) : 0.0;
}

__global__ void __launch_bounds__(threads) replace_tokens(ReplaceTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  for (int r = threadIdx.x; r < args.rows; r += threads)
    args.out[r] = args.tokens[r] < 0 ? static_cast<int64_t>(args.chosen[r]) : args.tokens[r];
}

template <typename T>
void launch(const ChooseTokensArgs& args, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  launch_dependent(reduce_parts<T>, {.grid = dim3(parts, rows), .block = dim3(threads)}, stream, args);
  launch_dependent(combine_parts<T>, {.grid = dim3(rows), .block = dim3(threads)}, stream, args);
}

}  // namespace

void choose_tokens(const ChooseTokensArgs& args, CUstream_st* stream) {
  if (args.dtype == Dtype::bf16) {
    launch<__nv_bfloat16>(args, stream);
  } else if (args.dtype == Dtype::f16) {
    launch<__half>(args, stream);
  } else {
    launch<float>(args, stream);
  }
  check_launch("choose_tokens");
}

void replace_negative_tokens(const ReplaceTokensArgs& args, CUstream_st* stream) {
  launch_dependent(replace_tokens, {.grid = dim3(1), .block = dim3(threads)}, stream, args);
  check_launch("replace_negative_tokens");
}

}  // namespace teratron::cuda
