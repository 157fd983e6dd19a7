// Two kernels: blocks reduce parts of the vocabulary; then a block per row combines them, and walks through
// the part in which the cumulative probability reaches the random number. With top-k or top-p the kernels of
// token_cut_cuda.cu come first.
#include "teratron/kernels/sampling/choose_tokens_device.cuh"

namespace teratron::cuda {
namespace {

/// Whether tokens of a row are drawn from.
template <bool filters>
struct Kept {
  const TokenCut* cut;

  __device__ Kept(const ChooseTokensArgs& args, int row) : cut(args.cuts + row) {}
  template <typename T>
  __device__ bool operator()(const Row<T>& row, int id) const {
    if constexpr (!filters) return true;
    const uint32_t order = row.order(id);
    return order > cut->order || (order == cut->order && id <= cut->last_id);
  }
};

/// Block (part, row).
template <typename T, bool filters>
__global__ void __launch_bounds__(threads) reduce_parts(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.y);
  const auto kept = [&, cut = Kept<filters>(args, blockIdx.y)](int id) { return cut(row, id); };
  const int begin = row.begin(blockIdx.x), end = row.end(blockIdx.x);
  Best best{-INFINITY, INT32_MAX};
  for (int id = begin + threadIdx.x; id < end; id += threads) best.take({row.logit(id), id});
  best = block_best(best);
  double sums[2] = {};
  if (best.logit > -INFINITY && (args.logprobs || !row.greedy)) {
    const double top = best.logit;
    for (int id = begin + threadIdx.x; id < end; id += threads) {
      const double x = row.logit(id) - top;
      if (!row.greedy && kept(id)) sums[0] += exp(x / row.temperature);
      if (args.logprobs) sums[1] += exp(x);
    }
  }
  __shared__ double shared[64];
  block_sum(sums, shared);
  if (threadIdx.x > 0) return;
  auto* const out = reinterpret_cast<Part*>(args.partial) + blockIdx.y * parts + blockIdx.x;
  *out = {best.logit, static_cast<double>(best.id), sums[0], sums[1]};
}

/// Where the sum of a row reaches its random number.
struct Crossing {
  int part;
  double top;             // the row's best logit
  double before, target;  // the sum before the part; what it reaches
};

/// The first id of a part at which the cumulative sum, from `before` on, reaches `target`; if none does, the
/// last of positive probability.
template <typename T, bool filters>
__device__ int walk(const Row<T>& row, const Kept<filters>& kept, const Crossing& crossing) {
  __shared__ int found;
  const auto [first, last] = Range(row, crossing.part);
  const auto mass = [&](int i) {
    return kept(row, i) ? exp((row.logit(i) - crossing.top) / row.temperature) : 0.0;
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
template <typename T, bool filters>
__global__ void __launch_bounds__(threads) combine_parts(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.x);
  __shared__ Part all[parts];
  if (threadIdx.x < parts)
    all[threadIdx.x] = reinterpret_cast<const Part*>(args.partial)[blockIdx.x * parts + threadIdx.x];
  __syncthreads();
  const Best best = best_of(all);
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
    id = walk(row, Kept<filters>(args, blockIdx.x), {chosen, top, before, target});
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

template <typename T, bool filters>
void launch_kernels(const ChooseTokensArgs& args, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  launch_dependent(reduce_parts<T, filters>, {.grid = dim3(parts, rows), .block = dim3(threads)}, stream,
                   args);
  launch_dependent(combine_parts<T, filters>, {.grid = dim3(rows), .block = dim3(threads)}, stream, args);
}

template <typename T>
void launch(const ChooseTokensArgs& args, cudaStream_t stream) {
  if (!args.cuts) return launch_kernels<T, false>(args, stream);
  find_token_cuts(args, stream);
  launch_kernels<T, true>(args, stream);
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
