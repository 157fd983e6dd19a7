// Sum of a token's rows (sum_rows.h): y[t] = sum_k x[rows[t, k]] in the order of k.
// One block per token, a thread per 16-byte pack of columns; four rows are in flight.
// Bytes: topk rows are read and one is written per token.
#include <algorithm>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/experts/launchers.h"

namespace teratron::cuda {
namespace {

constexpr int slots_at_once = 4;  // loads in flight

/// One block per token.
template <typename T, int N, bool wide>
__global__ void __launch_bounds__(256) sum_rows_kernel(SumRowsArgs args) {
  using A = Accumulator<T>;
  const T* const x = static_cast<const T*>(args.x);
  const int64_t first = blockIdx.x * args.topk;
  for (int64_t column = threadIdx.x * N; column < args.width; column += int64_t{blockDim.x} * N) {
    A sum[N] = {};
    for (int64_t k = 0; k < args.topk; k += slots_at_once) {
      Pack<T, N> packs[slots_at_once];
      bool used[slots_at_once];
#pragma unroll
      for (int s = 0; s < slots_at_once; ++s) {
        const int64_t slot = first + k + s;
        used[s] = k + s < args.topk && (!args.kept || args.kept[slot]);
        if (used[s]) packs[s] = load<N>(x + args.rows[slot] * args.width + column);
      }
#pragma unroll
      for (int s = 0; s < slots_at_once; ++s) {
        if (!used[s]) continue;
        A row[N];
        widen(packs[s], row);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += row[i];
      }
    }
    const int64_t at = blockIdx.x * args.width + column;
    if constexpr (wide) {
      store_values(static_cast<A*>(args.out) + at, sum);
    } else {
      store<N>(static_cast<T*>(args.out) + at, round_to_pack<T>(sum));
    }
  }
}

}  // namespace

void sum_rows(const SumRowsArgs& args, CUstream_st* stream) {
  with_pack(args.dtype, args.width, aligned(args.x, args.out), [&]<typename T>(T, auto pack) {
    constexpr int N = pack.value;
    const int64_t warps = ceil_div(ceil_div(args.width, N), 32);
    const auto threads = static_cast<unsigned>(32 * std::min<int64_t>(8, warps));
    const auto kernel = args.wide ? sum_rows_kernel<T, N, true> : sum_rows_kernel<T, N, false>;
    kernel<<<static_cast<unsigned>(args.tokens), threads, 0, stream>>>(args);
    check_launch("sum_rows");
  });
}

}  // namespace teratron::cuda
