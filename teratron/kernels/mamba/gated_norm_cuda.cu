// The gate and the RMS norm of each group (launchers.h). A team of threads has a row's group, each thread up
// to four packs of eight channels in registers.
// Bytes: every tensor once; the weight's gradient is summed in registers, a row of sums for each team.
#include "teratron/kernels/mamba/weight_at.cuh"

namespace teratron::cuda {
namespace {

constexpr int V = 8, block_threads = 256, max_threads = 256;

// Threads of a team, and its share of a block.
struct Teams {
  int threads, packs, per_block;

  explicit Teams(const GatedNormShape& shape) {
    const int all = shape.width / V;
    packs = all <= max_threads ? 1 : all <= 2 * max_threads ? 2 : 4;
    const int least = static_cast<int>(ceil_div(all, packs));
    threads = 1;
    while (threads < least && threads < 32) threads *= 2;
    if (least > 32) threads = static_cast<int>(ceil_div(least, 32)) * 32;
    per_block = threads < 32 ? block_threads / threads : 1;
  }
  int block() const { return threads * per_block; }
};

template <typename T, int K>
struct NormRow {
  const GatedNormShape& shape;
  const int threads, member, group;  // of the team
  float* const shared;

  __device__ void load_weight(const WeightVector& weight, float (&w)[K][V]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int at = shape.shared_weight ? column(k) + i : group * shape.width + column(k) + i;
        w[k][i] = has(k) ? weight_at<T>(weight, at, 1.0f) : 1.0f;
      }
    }
  }

  __device__ int column(int k) const { return (k * threads + member) * V; }
  __device__ bool has(int k) const { return column(k) < shape.width; }

  template <int N>
  __device__ void sum(float (&x)[N]) const {
    if (threads > 32) {
      __syncthreads();
      return block_sum(x, shared);
    }
    for (int offset = threads / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xFFFFFFFFu, x[i], offset);
    }
  }
};

__device__ float sigmoid(float x) {
  return fast_rcp(1.0f + fast_exp(-x));
}

// z's rows are aligned to 8 bytes only.
template <typename T>
__device__ void load_columns(const T* from, float (&x)[V]) {
#pragma unroll
  for (int i = 0; i < V; i += 4) {
    float four[4];
    widen(load<4>(from + i), four);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[i + j] = four[j];
  }
}
template <typename T>
__device__ void store_columns(T* to, const float (&x)[V]) {
#pragma unroll
  for (int i = 0; i < V; i += 4) {
    const float four[4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
    store<4>(to + i, round_to_pack<T>(four));
  }
}

// Where a team works: rows first, first + step, ... of one group. Teams of a warp meet in their sums, so all
// of a block go as many rounds.
struct TeamPlace {
  int member, group;
  int64_t first, step, rounds;

  __device__ TeamPlace(const GatedNormShape& shape, int threads)
      : member(static_cast<int>(threadIdx.x) % threads), group(blockIdx.y) {
    const int per_block = static_cast<int>(blockDim.x) / threads;
    const int64_t of_block = blockIdx.x * int64_t{per_block};
    first = of_block + static_cast<int>(threadIdx.x) / threads;
    step = gridDim.x * int64_t{per_block};
    rounds = (shape.rows - of_block + step - 1) / step;
  }
};

template <typename T, int K, GatePlace place_of_gate>
__global__ void __launch_bounds__(max_threads)
    gated_norm_kernel(GatedNormShape shape, GatedNormArgs args, T* out, int threads) {
  __shared__ float shared[32];
  const TeamPlace place(shape, threads);
  const NormRow<T, K> team{shape, threads, place.member, place.group, shared};
  float w[K][V];
  team.load_weight(args.weight, w);
  for (int64_t round = 0; round < place.rounds; ++round) {
    const int64_t row = place.first + round * place.step;
    const int64_t at = (row * shape.groups + place.group) * shape.width;
    float y[K][V] = {}, gate[K][V] = {}, square[1] = {0.0f};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (row >= shape.rows || !team.has(k)) continue;
      widen(load<V>(static_cast<const T*>(args.y) + at + team.column(k)), y[k]);
      load_columns(static_cast<const T*>(args.z.data) + row * args.z.stride +
                       int64_t{place.group} * shape.width + team.column(k),
                   gate[k]);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        gate[k][i] *= sigmoid(gate[k][i]);
        if constexpr (place_of_gate == GatePlace::before_norm) {
          y[k][i] *= gate[k][i];
          gate[k][i] = 1.0f;
        }
        square[0] += y[k][i] * y[k][i];
      }
    }
    float rstd = 1.0f;
    if constexpr (place_of_gate != GatePlace::alone) {
      team.sum(square);
      rstd = rsqrtf(square[0] / static_cast<float>(shape.width) + shape.eps);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (row >= shape.rows || !team.has(k)) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) y[k][i] *= rstd * w[k][i] * gate[k][i];
      store<V>(out + at + team.column(k), round_to_pack<T>(y[k]));
    }
  }
}

/// A thread's channels of one row, and its sums over the rows.
template <typename T, int K, GatePlace place_of_gate>
struct NormGradientRow {
  static constexpr bool first = place_of_gate == GatePlace::before_norm,
                        alone = place_of_gate == GatePlace::alone;
  const NormRow<T, K>& team;
  const GatedNormShape& shape = team.shape;
  float w[K][V], dweight[K][V] = {};
  float y[K][V], z[K][V], dout[K][V];

  __device__ int64_t place(int64_t row, int k) const {
    return (row * shape.groups + team.group) * shape.width + team.column(k);
  }
  __device__ int64_t gate_place(int64_t row, const TokenRows& rows, int k) const {
    return row * rows.stride + int64_t{team.group} * shape.width + team.column(k);
  }
  __device__ void load_row(int64_t row, const GatedNormArgs& args, const void* gradient) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < V; ++i) y[k][i] = z[k][i] = dout[k][i] = 0.0f;
      if (row >= shape.rows || !team.has(k)) continue;
      widen(load<V>(static_cast<const T*>(args.y) + place(row, k)), y[k]);
      widen(load<V>(static_cast<const T*>(gradient) + place(row, k)), dout[k]);
      load_columns(static_cast<const T*>(args.z.data) + gate_place(row, args.z, k), z[k]);
    }
  }
  /// What is normed, and the gradient of the normed without the weight.
  __device__ float h(int k, int i) const { return first ? y[k][i] * z[k][i] * sigmoid(z[k][i]) : y[k][i]; }
  __device__ float dnormed(int k, int i) const {
    return first || alone ? dout[k][i] : dout[k][i] * z[k][i] * sigmoid(z[k][i]);
  }
  /// 1 / the root mean square, and how much of h is taken from its gradient.
  __device__ float2 reduce() const {
    if (alone) return make_float2(1.0f, 0.0f);
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float own = h(k, i);
        sums[0] += own * own;
        sums[1] += dnormed(k, i) * w[k][i] * own;
      }
    }
    team.sum(sums);
    const float n = static_cast<float>(shape.width), rstd = rsqrtf(sums[0] / n + shape.eps);
    return make_float2(rstd, rstd * rstd * sums[1] / n);
  }
  __device__ void differentiate(int64_t row, const GatedNormGradient& gradient) {
    const float2 length = reduce();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float dz[V], dy[V];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float s = sigmoid(z[k][i]), gate = z[k][i] * s, slope = s * (1.0f + z[k][i] * (1.0f - s));
        const float own = h(k, i), normed = own * length.x;
        const float dh = length.x * (dnormed(k, i) * w[k][i] - own * length.y);
        dweight[k][i] += dnormed(k, i) * normed;
        dz[i] = (first ? dh * y[k][i] : dout[k][i] * normed * w[k][i]) * slope;
        dy[i] = first || alone ? dh * gate : dh;
      }
      if (row >= shape.rows || !team.has(k)) continue;
      store<V>(static_cast<T*>(gradient.dy) + place(row, k), round_to_pack<T>(dy));
      store_columns(static_cast<T*>(const_cast<void*>(gradient.dz.data)) + gate_place(row, gradient.dz, k),
                    dz);
    }
  }
};

template <typename T, int K, GatePlace place_of_gate>
__global__ void __launch_bounds__(max_threads)
    gated_norm_backward_kernel(GatedNormShape shape, GatedNormArgs args, GatedNormGradient gradient,
                               int threads) {
  __shared__ float shared[64];
  const TeamPlace place(shape, threads);
  const NormRow<T, K> team{shape, threads, place.member, place.group, shared};
  NormGradientRow<T, K, place_of_gate> own{.team = team};
  team.load_weight(args.weight, own.w);
  for (int64_t round = 0; round < place.rounds; ++round) {
    const int64_t row = place.first + round * place.step;
    own.load_row(row, args, gradient.dout);
    own.differentiate(row, gradient);
  }
  if (gradient.dweight == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (team.has(k)) store_values(gradient.dweight + own.place(place.first, k), own.dweight[k]);
  }
}

/// Blocks of a group: enough to fill the GPU about eight times.
unsigned blocks_of_group(const GatedNormShape& shape, const Teams& teams, int64_t per_sm) {
  const int64_t most = ceil_div(sm_count() * per_sm, shape.groups);
  const int64_t needed = ceil_div(shape.rows, teams.per_block);
  return static_cast<unsigned>(needed < most ? needed : most);
}
constexpr int64_t forward_blocks = 64, backward_blocks = 8;

/// Calls f(T{}, packs, where the gate is).
template <typename F>
void with_rows(const GatedNormShape& shape, const Teams& teams, F&& f) {
  using enum GatePlace;
  const auto of_packs = [&](auto t, auto packs) {
    if (shape.gate == before_norm) return f(t, packs, std::integral_constant<GatePlace, before_norm>{});
    if (shape.gate == after_norm) return f(t, packs, std::integral_constant<GatePlace, after_norm>{});
    f(t, packs, std::integral_constant<GatePlace, alone>{});
  };
  const auto of_type = [&](auto t) {
    if (teams.packs == 1) return of_packs(t, std::integral_constant<int, 1>{});
    if (teams.packs == 2) return of_packs(t, std::integral_constant<int, 2>{});
    of_packs(t, std::integral_constant<int, 4>{});
  };
  if (shape.dtype == Dtype::bf16) return of_type(__nv_bfloat16{});
  of_type(__half{});
}

}  // namespace

void gated_norm(const GatedNormShape& shape, const GatedNormArgs& args, void* out, CUstream_st* stream) {
  const Teams teams(shape);
  const dim3 grid(blocks_of_group(shape, teams, forward_blocks), shape.groups);
  with_rows(shape, teams,
            [&]<typename T, int K, GatePlace gate>(T, std::integral_constant<int, K>,
                                                   std::integral_constant<GatePlace, gate>) {
              gated_norm_kernel<T, K, gate>
                  <<<grid, teams.block(), 0, stream>>>(shape, args, static_cast<T*>(out), teams.threads);
              check_launch("gated_norm");
            });
}

int64_t gated_norm_gradient_rows(const GatedNormShape& shape) {
  const Teams teams(shape);
  return int64_t{blocks_of_group(shape, teams, backward_blocks)} * teams.per_block;
}

void gated_norm_backward(const GatedNormShape& shape, const GatedNormArgs& args,
                         const GatedNormGradient& gradient, CUstream_st* stream) {
  const Teams teams(shape);
  const dim3 grid(blocks_of_group(shape, teams, backward_blocks), shape.groups);
  with_rows(shape, teams,
            [&]<typename T, int K, GatePlace gate>(T, std::integral_constant<int, K>,
                                                   std::integral_constant<GatePlace, gate>) {
              gated_norm_backward_kernel<T, K, gate>
                  <<<grid, teams.block(), 0, stream>>>(shape, args, gradient, teams.threads);
              check_launch("gated_norm_backward");
            });
}

}  // namespace teratron::cuda
