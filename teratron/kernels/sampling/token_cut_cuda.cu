// The tokens that top-k or top-p keep, by a search for the logit at which they end: the bits of the logits,
// ordered, are fixed from the highest on by histograms of counts and masses. Masses exp((x - best) /
// temperature) are in units of 2^-44, so that sums do not depend on the order of additions. Of equal logits
// at the end, top-p keeps those with the smallest ids, top-k all.
#include "teratron/kernels/sampling/choose_tokens_device.cuh"

namespace teratron::cuda {
namespace {

constexpr int buckets = TokenHistogram::buckets, per_thread = buckets / threads;
constexpr double unit = 17592186044416.0;  // 2^44

/// Bits [low, low + width) of the order are those of a pass.
struct Digit {
  int low, width;
};
__device__ constexpr Digit digit_of(int pass) {
  return pass == 0 ? Digit{21, 11} : pass == 1 ? Digit{10, 11} : Digit{0, 10};
}
/// A token that is reached with `count` tokens and `mass` before it is kept.
template <typename T>
struct Limit {
  bool by_count;
  int64_t most_before;
  double most_mass;

  __device__ Limit(const Row<T>& row, uint64_t mass)
      : by_count(row.top_k > 1),
        most_before(row.top_k - 1),
        most_mass(row.top_p * static_cast<double>(mass)) {}
  __device__ bool keeps_after(int64_t count, uint64_t mass) const {
    return by_count ? count <= most_before : static_cast<double>(mass) <= most_mass;
  }
  /// How many of `count` tokens of equal mass, of `together`, are kept after `mass`, of which one is.
  __device__ int ties(int count, uint64_t mass, uint64_t together) const {
    if (by_count) return INT32_MAX;
    const double each = static_cast<double>(together) / count;
    return static_cast<int>(fmin((most_mass - static_cast<double>(mass)) / each + 1.0, 2e9));
  }
};

/// The cut after a pass, from the one before: its bucket is the first, from the highest on, after which no
/// token is kept; it is stored by the thread that has this bucket. All tokens are kept if there is none.
template <typename T>
__device__ void narrow_cut(const Row<T>& row, const TokenHistogram& histogram, int pass, TokenCut& stored) {
  const auto bucket_of = [](int i) { return buckets - 1 - (static_cast<int>(threadIdx.x) * per_thread + i); };
  uint64_t own_mass = 0;
  int own_count = 0;
  for (int i = 0; i < per_thread; ++i) {
    own_mass += histogram.mass[pass][bucket_of(i)];
    own_count += static_cast<int>(histogram.count[pass][bucket_of(i)]);
  }
  TokenCut cut = stored;
  uint64_t mass = sum_before(own_mass);
  int count = sum_before(own_count);
  if (pass == 0) {
    __shared__ uint64_t total;
    if (threadIdx.x == threads - 1) total = mass + own_mass;
    __syncthreads();
    cut = {
        .order = 0, .last_id = INT32_MAX, .above = 0, .mass_above = 0, .mass = total, .kept_ties = INT32_MAX};
  }
  cut.order <<= digit_of(pass).width;
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) stored = cut;
  __syncthreads();
  const Limit<T> limit(row, cut.mass);
  mass += cut.mass_above;
  count += cut.above;
  for (int i = 0; i < per_thread; ++i) {
    const uint64_t more_mass = histogram.mass[pass][bucket_of(i)];
    const int more = static_cast<int>(histogram.count[pass][bucket_of(i)]);
    if (limit.keeps_after(count, mass) && !limit.keeps_after(count + more, mass + more_mass)) {
      cut.order |= static_cast<uint32_t>(bucket_of(i));
      cut.above = count;
      cut.mass_above = mass;
      cut.kept_ties = limit.ties(more, mass, more_mass);
      stored = cut;
    }
    count += more;
    mass += more_mass;
  }
}

/// Block (part, row): the best logit of the part; zeros for the histograms.
template <typename T>
__global__ void __launch_bounds__(threads) start_search(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.y);
  constexpr int words = sizeof(TokenHistogram) / 4;
  auto* const histogram = reinterpret_cast<uint32_t*>(args.histograms + blockIdx.y);
  for (int i = blockIdx.x * threads + threadIdx.x; i < words; i += parts * threads) histogram[i] = 0;
  Best best{-INFINITY, INT32_MAX};
  for (int id = row.begin(blockIdx.x) + threadIdx.x; id < row.end(blockIdx.x); id += threads)
    best.take({row.logit(id), id});
  best = block_best(best);
  if (threadIdx.x > 0) return;
  reinterpret_cast<Part*>(args.partial)[blockIdx.y * parts + blockIdx.x] = {
      best.logit, static_cast<double>(best.id), 0.0, 0.0};
}

/// Block (part, row): adds the part's tokens of the cut's order so far to the histogram of a pass.
template <typename T, int pass>
__global__ void __launch_bounds__(threads) count_tokens(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.y);
  if (!row.filters()) return;
  __shared__ unsigned long long mass[buckets];
  __shared__ uint32_t count[buckets];
  for (int i = threadIdx.x; i < buckets; i += threads) mass[i] = 0, count[i] = 0;
  __syncthreads();
  constexpr Digit digit = digit_of(pass);
  const uint32_t order_so_far = pass > 0 ? args.cuts[blockIdx.y].order : 0;
  const double top = best_of(reinterpret_cast<const Part*>(args.partial) + blockIdx.y * parts).logit;
  for (int id = row.begin(blockIdx.x) + threadIdx.x; id < row.end(blockIdx.x); id += threads) {
    const uint32_t order = order_of(row.logit(id)) >> digit.low;
    if (pass > 0 && order >> digit.width != order_so_far) continue;
    const uint32_t bucket = order & ((1u << digit.width) - 1);
    const double x = exp((row.logit(id) - top) / row.temperature);
    atomicAdd(&count[bucket], 1u);
    atomicAdd(&mass[bucket], static_cast<unsigned long long>(x * unit + 0.5));
  }
  __syncthreads();
  TokenHistogram& histogram = args.histograms[blockIdx.y];
  for (int i = threadIdx.x; i < buckets; i += threads) {
    if (count[i] == 0) continue;
    atomicAdd(&histogram.count[pass][i], count[i]);
    atomicAdd(reinterpret_cast<unsigned long long*>(&histogram.mass[pass][i]), mass[i]);
  }
}

/// Block: row.
template <typename T, int pass>
__global__ void __launch_bounds__(threads) store_cut(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.x);
  if (row.filters()) return narrow_cut(row, args.histograms[blockIdx.x], pass, args.cuts[blockIdx.x]);
  if (threadIdx.x == 0)
    args.cuts[blockIdx.x] = {
        .order = 0, .last_id = INT32_MAX, .above = 0, .mass_above = 0, .mass = 0, .kept_ties = INT32_MAX};
}

/// Block (part, row): the tokens of the part at the cut.
template <typename T>
__global__ void __launch_bounds__(threads) count_ties(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.y);
  const uint32_t order = args.cuts[blockIdx.y].order;
  int ties = 0;
  for (int id = row.begin(blockIdx.x) + threadIdx.x; id < row.end(blockIdx.x); id += threads)
    ties += row.order(id) == order ? 1 : 0;
  ties = __reduce_add_sync(0xFFFFFFFFu, ties);
  __shared__ int all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicAdd(&all, ties);
  __syncthreads();
  if (threadIdx.x == 0) args.ties[blockIdx.y * parts + blockIdx.x] = all;
}

/// Block: row. The id of the last of the kept ties.
template <typename T>
__global__ void __launch_bounds__(threads) find_last_tie(ChooseTokensArgs args) {
  wait_for_predecessor();
  release_successor();
  const Row<T> row(args, blockIdx.x);
  TokenCut& cut = args.cuts[blockIdx.x];
  const int kept = cut.kept_ties;
  const uint32_t order = cut.order;
  int part = 0, before = 0;
  while (part < parts && before + args.ties[blockIdx.x * parts + part] < kept)
    before += args.ties[blockIdx.x * parts + part++];
  if (part == parts) return;  // all are kept
  const auto [first, last] = Range(row, part);
  int own = 0;
  for (int id = first; id < last; ++id) own += row.order(id) == order ? 1 : 0;
  int rank = before + sum_before(own);
  for (int id = first; id < last; ++id) {
    if (row.order(id) == order && ++rank == kept) cut.last_id = id;
  }
}

template <typename T, int pass>
void launch_pass(const ChooseTokensArgs& args, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  launch_dependent(count_tokens<T, pass>, {.grid = dim3(parts, rows), .block = dim3(threads)}, stream, args);
  launch_dependent(store_cut<T, pass>, {.grid = dim3(rows), .block = dim3(threads)}, stream, args);
}

template <typename T>
void launch(const ChooseTokensArgs& args, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  const LaunchShape by_part{.grid = dim3(parts, rows), .block = dim3(threads)};
  launch_dependent(start_search<T>, by_part, stream, args);
  launch_pass<T, 0>(args, stream);
  launch_pass<T, 1>(args, stream);
  if constexpr (order_shift<T> == 0) launch_pass<T, 2>(args, stream);
  launch_dependent(count_ties<T>, by_part, stream, args);
  launch_dependent(find_last_tie<T>, {.grid = dim3(rows), .block = dim3(threads)}, stream, args);
}

}  // namespace

void find_token_cuts(const ChooseTokensArgs& args, CUstream_st* stream) {
  if (args.dtype == Dtype::bf16) {
    launch<__nv_bfloat16>(args, stream);
  } else if (args.dtype == Dtype::f16) {
    launch<__half>(args, stream);
  } else {
    launch<float>(args, stream);
  }
  check_launch("find_token_cuts");
}

}  // namespace teratron::cuda
