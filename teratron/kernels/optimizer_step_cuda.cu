#include "teratron/kernels/device.cuh"
#include "teratron/kernels/optimizer_step_cuda.h"
#include "teratron/kernels/split_float.h"

namespace teratron::cuda {
namespace {

constexpr int block_shift = 6;  // log2 of optimizer_block
constexpr int max_groups = 256;

/// What a parameter group needs, computed once per block in f64.
template <typename A>
struct GroupStep {
  A rate;   // lr, divided by Adam's first bias correction
  A keep;   // 1 - lr * weight_decay
  A decay;  // weight_decay
};

template <typename A>
__device__ void read_groups(const StepArgs& args, double correction, GroupStep<A>* groups) {
  for (int i = threadIdx.x; i < args.group_count; i += blockDim.x) {
    groups[i] = {static_cast<A>(args.lr[i] / correction),
                 static_cast<A>(1 - args.lr[i] * args.weight_decay[i]), static_cast<A>(args.weight_decay[i])};
  }
}

template <typename A>
struct AdamRule {
  A rest1, beta2, rest2, eps;
  bool decoupled;
  A inverse_root;  // 1 / sqrt of Adam's second bias correction

  __device__ void operator()(const GroupStep<A>& group, A g, A& p, A& m, A& v) const {
    if (decoupled) {
      p *= group.keep;
    } else {
      g += group.decay * p;
    }
    m += rest1 * (g - m);
    v = beta2 * v + rest2 * g * g;
    p -= group.rate * fast_quotient(m, fast_sqrt(v) * inverse_root + eps);
  }
};

template <typename A>
struct SgdRule {
  A momentum;
  bool buffered;

  __device__ void operator()(const GroupStep<A>& group, A g, A& p, A& b, A&) const {
    g += group.decay * p;
    if (buffered) b = momentum * b + g;
    p -= group.rate * (buffered ? b : g);
  }
};

/// Master weights that lie in one piece, and their rounded copy where the model has one.
template <typename A>
struct WholeWeights {
  template <int N>
  using Read = Pack<A, N>;
  template <int N>
  static __device__ Read<N> read(const StepArgs& args, int64_t i) {
    return load<N>(static_cast<const A*>(args.param) + i);
  }
  template <int N>
  static __device__ Pack<A, N> join(const Read<N>& read) {
    return read;
  }
  template <int N>
  static __device__ void write(const StepArgs& args, int64_t i, const Pack<A, N>& param) {
    store<N>(static_cast<A*>(args.param) + i, param);
    if (args.copy == nullptr) return;
    float x[N];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = static_cast<float>(param.v[k]);
    store<N>(static_cast<__half*>(args.copy) + i, round_to_pack<__half>(x));
  }
};

/// Master weights of which the model's are one half.
struct SplitWeights {
  /// In words: the compiler would take packs apart at once, and so wait for them before it reads what comes next.
  template <int N>
  using Words = std::conditional_t<N == 4, uint2, uint16_t>;
  template <int N>
  struct Read {
    Words<N> high, low;
  };
  template <int N>
  static __device__ Read<N> read(const StepArgs& args, int64_t i) {
    static_assert(sizeof(Words<N>) == sizeof(uint16_t) * N);
    return {*reinterpret_cast<const Words<N>*>(static_cast<const uint16_t*>(args.param) + i),
            *reinterpret_cast<const Words<N>*>(args.remainder + i)};
  }
  template <int N>
  static __device__ Pack<float, N> join(const Read<N>& read) {
    Pack<uint16_t, N> high;
    Pack<int16_t, N> low;
    memcpy(&high, &read.high, sizeof(high));
    memcpy(&low, &read.low, sizeof(low));
    Pack<float, N> param;
#pragma unroll
    for (int k = 0; k < N; ++k) param.v[k] = __uint_as_float(join_bits({high.v[k], low.v[k]}));
    return param;
  }
  template <int N>
  static __device__ void write(const StepArgs& args, int64_t i, const Pack<float, N>& param) {
    Pack<uint16_t, N> high;
    Pack<int16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const SplitFloat split = split_bits(__float_as_uint(param.v[k]));
      high.v[k] = split.high;
      low.v[k] = split.low;
    }
    store<N>(static_cast<uint16_t*>(args.param) + i, high);
    store<N>(args.remainder + i, low);
  }
};

/// What N elements of the shard need. Moments that are null are not touched.
template <int N, typename A, typename G, typename W>
struct Elements {
  Pack<G, N> grad;
  typename W::template Read<N> weights;
  Pack<A, N> param, moment1, moment2;

  __device__ void read(const StepArgs& args, int64_t i) {
    grad = load<N>(static_cast<const G*>(args.grad) + i);
    weights = W::template read<N>(args, i);
    if (args.moment1 != nullptr) moment1 = load<N>(static_cast<const A*>(args.moment1) + i);
    if (args.moment2 != nullptr) moment2 = load<N>(static_cast<const A*>(args.moment2) + i);
  }
  template <typename Rule>
  __device__ void update(const Rule& rule, const GroupStep<A>& group, A grad_scale) {
    A g[N];
    widen(grad, g);
    param = W::template join<N>(weights);
#pragma unroll
    for (int k = 0; k < N; ++k) rule(group, g[k] * grad_scale, param.v[k], moment1.v[k], moment2.v[k]);
  }
  __device__ void write(const StepArgs& args, int64_t i) const {
    W::template write<N>(args, i, param);
    if (args.moment1 != nullptr) store<N>(static_cast<A*>(args.moment1) + i, moment1);
    if (args.moment2 != nullptr) store<N>(static_cast<A*>(args.moment2) + i, moment2);
  }
};

/// Blocks take chunks of `ahead` packs per thread in turn, all of them read before the first is written.
template <int N, typename A, typename G, typename W, typename Rule>
__device__ void walk(const StepArgs& args, const Rule& rule, const GroupStep<A>* groups) {
  constexpr int ahead = N > 1 ? 2 : 1;
  const A grad_scale = args.grad_scale == nullptr ? A(1) : static_cast<A>(*args.grad_scale);
  const auto group_of = [&](int64_t i) -> const GroupStep<A>& {
    return groups[args.groups == nullptr ? 0 : args.groups[i >> block_shift]];
  };
  const int64_t row = int64_t{blockDim.x} * N, whole = args.n / N * N;
  for (int64_t first = blockIdx.x * ahead * row + threadIdx.x * N; first < whole;
       first += gridDim.x * ahead * row) {
    Elements<N, A, G, W> elements[ahead];
#pragma unroll
    for (int r = 0; r < ahead; ++r) {
      if (first + r * row < whole) elements[r].read(args, first + r * row);
    }
#pragma unroll
    for (int r = 0; r < ahead; ++r) {
      const int64_t i = first + r * row;
      if (i >= whole) continue;
      elements[r].update(rule, group_of(i), grad_scale);
      elements[r].write(args, i);
    }
  }
  const int64_t rest = whole + blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (rest >= args.n) return;
  Elements<1, A, G, W> last;
  last.read(args, rest);
  last.update(rule, group_of(rest), grad_scale);
  last.write(args, rest);
}

template <int N, typename A, typename G, typename W>
__global__ void __launch_bounds__(256) adam_kernel(StepArgs args, AdamConstants c) {
  if (args.found_inf != nullptr && *args.found_inf != 0) return;
  __shared__ GroupStep<A> groups[max_groups];
  __shared__ double corrections[2];
  if (threadIdx.x < 2) {
    corrections[threadIdx.x] = 1 - pow(threadIdx.x == 0 ? c.beta1 : c.beta2, static_cast<double>(*args.step));
  }
  __syncthreads();
  read_groups<A>(args, corrections[0], groups);
  __syncthreads();
  const AdamRule<A> rule{static_cast<A>(1 - c.beta1),
                         static_cast<A>(c.beta2),
                         static_cast<A>(1 - c.beta2),
                         static_cast<A>(c.eps),
                         c.decoupled,
                         static_cast<A>(1 / sqrt(corrections[1]))};
  walk<N, A, G, W>(args, rule, groups);
}

template <int N, typename A, typename G, typename W>
__global__ void __launch_bounds__(256) sgd_kernel(StepArgs args, double momentum) {
  if (args.found_inf != nullptr && *args.found_inf != 0) return;
  __shared__ GroupStep<A> groups[max_groups];
  read_groups<A>(args, 1.0, groups);
  __syncthreads();
  walk<N, A, G, W>(args, SgdRule<A>{static_cast<A>(momentum), args.moment1 != nullptr}, groups);
}

__global__ void __launch_bounds__(256) join_kernel(HalvesArgs args) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < args.n) args.x[i] = join_bits({args.high[i], args.low[i]});
}

__global__ void __launch_bounds__(256) split_kernel(HalvesArgs args) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= args.n) return;
  const SplitFloat split = split_bits(args.x[i]);
  args.high[i] = split.high;
  args.low[i] = split.low;
}

__global__ void advance_kernel(int64_t* step, const float* found_inf) {
  if (found_inf == nullptr || *found_inf == 0) ++*step;
}

/// Calls f(pack, A{}, G{}, W{}): packs of 4 where everything is aligned to 16 bytes.
template <typename F>
void with_types(const StepArgs& args, F&& f) {
  if (args.param_dtype == Dtype::f64)
    return f(std::integral_constant<int, 1>{}, double{}, double{}, WholeWeights<double>{});
  const auto with_weights = [&](auto pack, auto grad) {
    args.remainder == nullptr ? f(pack, float{}, grad, WholeWeights<float>{})
                              : f(pack, float{}, grad, SplitWeights{});
  };
  with_device_type(args.grad_dtype, [&]<typename G>(G grad) {
    if constexpr (!std::is_same_v<G, double>) {
      if (aligned(args.param, args.remainder, args.copy, args.grad, args.moment1, args.moment2)) {
        with_weights(std::integral_constant<int, 4>{}, grad);
      } else {
        with_weights(std::integral_constant<int, 1>{}, grad);
      }
    }
  });
}

/// A grid that fills the GPU and walks over the shard: the blocks' preparation is then spread thin.
unsigned grid_for(int64_t n) {
  const int64_t wanted = ceil_div(n, 256 * 4), most = int64_t{multiprocessors()} * 8;
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

}  // namespace

void adam_step(const StepArgs& args, const AdamConstants& constants, CUstream_st* stream) {
  with_types(args, [&]<typename A, typename G, typename W>(auto pack, A, G, W) {
    adam_kernel<pack.value, A, G, W><<<grid_for(args.n), 256, 0, stream>>>(args, constants);
  });
  check_launch("adam_step");
}

void sgd_step(const StepArgs& args, double momentum, CUstream_st* stream) {
  with_types(args, [&]<typename A, typename G, typename W>(auto pack, A, G, W) {
    sgd_kernel<pack.value, A, G, W><<<grid_for(args.n), 256, 0, stream>>>(args, momentum);
  });
  check_launch("sgd_step");
}

void advance_step(int64_t* step, const float* found_inf, CUstream_st* stream) {
  advance_kernel<<<1, 1, 0, stream>>>(step, found_inf);
  check_launch("advance_step");
}

void join_halves(const HalvesArgs& args, CUstream_st* stream) {
  join_kernel<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, stream>>>(args);
  check_launch("join_halves");
}

void split_into_halves(const HalvesArgs& args, CUstream_st* stream) {
  split_kernel<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, stream>>>(args);
  check_launch("split_into_halves");
}

}  // namespace teratron::cuda
