// Merges attention over parts of the keys (merge_attention.h), whose log-sum-exps are l_i:
//   L = log sum_i exp(l_i), y = sum_i exp(l_i - L) y_i
// A thread has one 16-byte pack of channels of a query and head, and reads the log-sum-exps of all parts.
// Bytes: every part is read once, y and L are written once.
#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = 256;

/// y += weight * y_i of V channels.
template <typename T, int V>
__device__ void add_weighted(const T* from, float weight, float (&y)[V]) {
  float x[V];
  widen(load<V>(from), x);
#pragma unroll
  for (int i = 0; i < V; ++i) y[i] += weight * x[i];
}

/// A thread has V channels of one query and head: packs of 16 bytes of T.
template <typename T, int V>
__global__ void __launch_bounds__(threads) merge_attention_kernel(MergeArgs args) {
  const int64_t packs = args.channels / V;
  const int64_t thread = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t row = thread / packs, channel = thread % packs * V;
  if (row >= args.queries * args.batch * args.heads) return;
  const int64_t n = row % args.heads, b = row / args.heads % args.batch, s = row / args.heads / args.batch;
  float l[max_merge_parts], top = -INFINITY;
#pragma unroll
  for (int i = 0; i < max_merge_parts; ++i) {
    l[i] = -INFINITY;
    if (i >= args.count) continue;
    const MergePart& part = args.parts[i];
    const int64_t q = s - part.first;
    if (q < 0 || q >= part.queries) continue;
    const float own = part.logsumexp[b * part.l_b + n * part.l_n + q * part.l_s];
    if (!isinf(own)) l[i] = own;
    top = fmaxf(top, l[i]);
  }
  const float base = top == -INFINITY ? 0.0f : top;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < max_merge_parts; ++i) sum += expf(l[i] - base);
  float y[V] = {};
#pragma unroll
  for (int i = 0; i < max_merge_parts; ++i) {
    if (l[i] == -INFINITY) continue;
    const MergePart& part = args.parts[i];
    const float weight = expf(l[i] - base) / sum;
    const int64_t place = (s - part.first) * part.y_s + b * part.y_b + n * part.y_n + channel;
    if (part.is_wide) {
      add_weighted<float, V>(static_cast<const float*>(part.y) + place, weight, y);
    } else {
      add_weighted<T, V>(static_cast<const T*>(part.y) + place, weight, y);
    }
  }
  const int64_t out = row * args.channels + channel;
  if (args.wide_out) {
    store_values(static_cast<float*>(args.y) + out, y);
  } else {
    store<V>(static_cast<T*>(args.y) + out, round_to_pack<T>(y));
  }
  if (channel == 0) args.logsumexp[(b * args.heads + n) * args.queries + s] = logf(sum) + base;
}

template <typename T>
void launch(const MergeArgs& args, cudaStream_t stream) {
  constexpr int V = pack_size<T>;
  bool packs = args.channels % V == 0 && aligned(args.y);
  for (int i = 0; i < args.count; ++i) {
    const MergePart& part = args.parts[i];
    packs = packs && aligned(part.y) && part.y_s % V == 0 && part.y_b % V == 0 && part.y_n % V == 0;
  }
  const int64_t rows = args.queries * args.batch * args.heads;
  const auto blocks = static_cast<unsigned>(ceil_div(rows * args.channels / (packs ? V : 1), threads));
  const auto kernel = packs ? merge_attention_kernel<T, V> : merge_attention_kernel<T, 1>;
  kernel<<<blocks, threads, 0, stream>>>(args);
  check_launch("merge_attention");
}

}  // namespace

void merge_attention(const MergeArgs& args, CUstream_st* stream) {
  if (args.dtype == Dtype::bf16) return launch<__nv_bfloat16>(args, stream);
  if (args.dtype == Dtype::f16) return launch<__half>(args, stream);
  launch<float>(args, stream);
}

}  // namespace teratron::cuda
