// Adam and SGD over a flat range of parameters (optimizer_step.h), weight decay decoupled or added to g:
//   m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, p <- (1 - lr wd) p - lr m' / (sqrt(v') + eps)
// A persistent grid. On Hopper, blocks move chunks of 1,024 parameters through shared memory by bulk
// copies, four in flight. Else a thread loads two packs of 16 bytes before it stores the first.
// Bytes per parameter with split master weights: 16 read, 12 written. One H200: 0.93 of a copy.
#include <algorithm>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/hopper.cuh"
#include "teratron/kernels/optimizer/launchers.h"
#include "teratron/kernels/optimizer/split_master_weights.h"

namespace teratron::cuda {
inline namespace optimizer {  // in the kernels' names (bench/kernel_breakdown.cpp)
namespace {

constexpr int block_shift = 6;  // log2 of optimizer_block
constexpr int max_groups = 256;

/// Constants of a parameter group, computed once per block in f64.
template <typename A>
struct GroupStep {
  A rate;   // lr, divided by Adam's first bias correction
  A keep;   // 1 - lr * weight_decay
  A decay;  // weight_decay
};

template <typename A>
__device__ void load_groups(const StepArgs& args, double correction, GroupStep<A>* groups) {
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

/// Master weights in one tensor, and the rounded model copy if there is one.
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

/// Split master weights: the model's bf16 weights and 16 low bits.
struct SplitWeights {
  /// As words: the compiler would unpack packs immediately, and so wait for them before the next loads.
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
    for (int k = 0; k < N; ++k) param.v[k] = __uint_as_float(join_master_weight({high.v[k], low.v[k]}));
    return param;
  }
  template <int N>
  static __device__ void write(const StepArgs& args, int64_t i, const Pack<float, N>& param) {
    Pack<uint16_t, N> high;
    Pack<int16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const SplitWeight split = split_master_weight(__float_as_uint(param.v[k]));
      high.v[k] = split.high;
      low.v[k] = split.low;
    }
    store<N>(static_cast<uint16_t*>(args.param) + i, high);
    store<N>(args.remainder + i, low);
  }
};

/// State of N elements. Null moments are not accessed.
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

/// Blocks loop over chunks of `ahead` packs per thread; all loads of a chunk precede its first store.
template <int N, typename A, typename G, typename W, typename Rule>
__device__ void step_elements(const StepArgs& args, const Rule& rule, const GroupStep<A>* groups) {
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

/// Called by all threads of a block.
template <typename A>
__device__ AdamRule<A> prepare_adam(const StepArgs& args, const AdamConstants& c, GroupStep<A>* groups) {
  __shared__ double corrections[2];
  if (threadIdx.x < 2) {
    corrections[threadIdx.x] = 1 - pow(threadIdx.x == 0 ? c.beta1 : c.beta2, static_cast<double>(*args.step));
  }
  __syncthreads();
  load_groups<A>(args, corrections[0], groups);
  __syncthreads();
  return {static_cast<A>(1 - c.beta1),
          static_cast<A>(c.beta2),
          static_cast<A>(1 - c.beta2),
          static_cast<A>(c.eps),
          c.decoupled,
          static_cast<A>(1 / sqrt(corrections[1]))};
}

template <int N, typename A, typename G, typename W>
__global__ void __launch_bounds__(256) adam_kernel(StepArgs args, AdamConstants c) {
  if (args.found_inf != nullptr && *args.found_inf != 0) return;
  __shared__ GroupStep<A> groups[max_groups];
  step_elements<N, A, G, W>(args, prepare_adam<A>(args, c, groups), groups);
}

/// A pipeline stage of Adam in shared memory: bulk copies keep more bytes in flight than registers could, and
/// take no instructions. For split master weights and f32 gradients.
struct alignas(128) AdamStage {
  static constexpr int parameters = 1024, count = 4, blocks = 3;  // count: stages per block; blocks: per SM
  static constexpr uint32_t words = parameters * sizeof(float), halves = parameters * sizeof(uint16_t);
  float grad[parameters], moment1[parameters], moment2[parameters];
  uint16_t high[parameters];
  int16_t low[parameters];

  __device__ void fetch(const StepArgs& args, SharedAddress barrier) {
    hopper::mbarrier_arrive_expect_tx(barrier, sizeof(AdamStage));
    hopper::bulk_load(shared_address(grad), args.grad, words, barrier);
    hopper::bulk_load(shared_address(moment1), args.moment1, words, barrier);
    hopper::bulk_load(shared_address(moment2), args.moment2, words, barrier);
    hopper::bulk_load(shared_address(high), args.param, halves, barrier);
    hopper::bulk_load(shared_address(low), args.remainder, halves, barrier);
  }
  __device__ void write_back(const StepArgs& args) {
    hopper::bulk_store(args.moment1, shared_address(moment1), words);
    hopper::bulk_store(args.moment2, shared_address(moment2), words);
    hopper::bulk_store(args.param, shared_address(high), halves);
    hopper::bulk_store(args.remainder, shared_address(low), halves);
    hopper::bulk_commit();
  }
  /// Not with store(), which is for global memory.
  __device__ void write(const Elements<4, float, float, SplitWeights>& four, const StepArgs& of_here, int k) {
    SplitWeights::write<4>(of_here, k, four.param);
    const auto &m = four.moment1.v, &v = four.moment2.v;
    *reinterpret_cast<float4*>(moment1 + k) = {m[0], m[1], m[2], m[3]};
    *reinterpret_cast<float4*>(moment2 + k) = {v[0], v[1], v[2], v[3]};
  }
  /// Arguments of a step over this stage.
  __device__ StepArgs here(StepArgs args) {
    args.n = parameters;
    args.grad = grad;
    args.moment1 = moment1;
    args.moment2 = moment2;
    args.param = high;
    args.remainder = low;
    return args;
  }
};

/// Arguments of a step from parameter i on, a multiple of optimizer_block.
__device__ inline StepArgs from(StepArgs args, int64_t i) {
  args.n -= i;
  args.grad = static_cast<const float*>(args.grad) + i;
  args.moment1 = static_cast<float*>(args.moment1) + i;
  args.moment2 = static_cast<float*>(args.moment2) + i;
  args.param = static_cast<uint16_t*>(args.param) + i;
  args.remainder += i;
  if (args.groups != nullptr) args.groups += i >> block_shift;
  return args;
}

__global__ void __launch_bounds__(256, AdamStage::blocks)
    adam_pipelined_kernel(StepArgs args, AdamConstants c) {
  if constexpr (hopper::has_sm_90) {
    if (args.found_inf != nullptr && *args.found_inf != 0) return;
    using Four = Elements<4, float, float, SplitWeights>;
    constexpr int size = AdamStage::parameters, count = AdamStage::count;
    extern __shared__ __align__(128) unsigned char memory[];
    auto* const stages = reinterpret_cast<AdamStage*>(memory);
    __shared__ uint64_t full[count];
    __shared__ GroupStep<float> groups[max_groups];
    const int64_t whole = args.n / size * size, step = gridDim.x * int64_t{size};
    const auto fetch = [&](int s, int64_t i) {
      if (i < whole) stages[s].fetch(from(args, i), shared_address(&full[s]));
    };
    if (threadIdx.x == 0) {
      for (int s = 0; s < count; ++s) hopper::mbarrier_init(shared_address(&full[s]), 1);
      hopper::fence_mbarrier_init();
      for (int s = 0; s < count - 1; ++s) fetch(s, (blockIdx.x + s * int64_t{gridDim.x}) * size);
    }
    const AdamRule<float> rule = prepare_adam<float>(args, c, groups);
    const float grad_scale = args.grad_scale == nullptr ? 1.0F : *args.grad_scale;
    int s = 0;
    uint32_t phase = 0;
    for (int64_t i = blockIdx.x * int64_t{size}; i < whole; i += step) {
      const int k = 4 * static_cast<int>(threadIdx.x);
      const int group =
          args.groups == nullptr ? 0 : args.groups[(i + k) >> block_shift];  // loads while the stage arrives
      hopper::mbarrier_wait(shared_address(&full[s]), phase);
      const StepArgs here = stages[s].here(args);
      Four four;
      four.read(here, k);
      four.update(rule, groups[group], grad_scale);
      stages[s].write(four, here, k);
      hopper::fence_proxy_async();
      __syncthreads();
      if (threadIdx.x == 0) {
        stages[s].write_back(from(args, i));
        hopper::bulk_wait_read<1>();  // the previous stage is free
        fetch(s == 0 ? count - 1 : s - 1, i + (count - 1) * step);
      }
      s = s + 1 == count ? 0 : s + 1;
      if (s == 0) phase ^= 1;
    }
    if (threadIdx.x == 0) hopper::bulk_wait_read<0>();
    step_elements<4, float, float, SplitWeights>(from(args, whole), rule, groups);
  }
}

bool can_pipeline(const StepArgs& args) {
  static const int64_t max_blocks = [] {
    const int bytes = AdamStage::blocks * AdamStage::count * static_cast<int>(sizeof(AdamStage));
    // The body is empty if compiled for less than sm_90.
    const bool compiled = compiled_arch(reinterpret_cast<const void*>(adam_pipelined_kernel)) >= 90;
    return compiled && bytes <= shared_memory_limit() ? sm_count() * AdamStage::blocks : 0;
  }();
  return max_blocks > 0 && args.n >= 2 * max_blocks * AdamStage::parameters && args.remainder != nullptr &&
         args.grad_dtype == Dtype::f32 && args.moment2 != nullptr &&
         aligned(args.param, args.remainder, args.grad, args.moment1, args.moment2);
}

template <int N, typename A, typename G, typename W>
__global__ void __launch_bounds__(256) sgd_kernel(StepArgs args, double momentum) {
  if (args.found_inf != nullptr && *args.found_inf != 0) return;
  __shared__ GroupStep<A> groups[max_groups];
  load_groups<A>(args, 1.0, groups);
  __syncthreads();
  step_elements<N, A, G, W>(args, SgdRule<A>{static_cast<A>(momentum), args.moment1 != nullptr}, groups);
}

__global__ void advance_kernel(int64_t* step, const float* found_inf) {
  if (found_inf == nullptr || *found_inf == 0) ++*step;
}

/// Calls f(pack, A{}, G{}, W{}): packs of 4 if everything is 16-byte aligned.
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

/// A persistent grid, which amortizes the preparation per block.
unsigned grid_for(int64_t n) {
  return static_cast<unsigned>(std::min(ceil_div(n, 256 * 4), int64_t{sm_count()} * 8));
}

}  // namespace
}  // namespace optimizer

void adam_step(const StepArgs& args, const AdamConstants& constants, CUstream_st* stream) {
  if (can_pipeline(args)) {
    constexpr int bytes = AdamStage::count * sizeof(AdamStage);
    cudaFuncSetAttribute(adam_pipelined_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(adam_pipelined_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
    adam_pipelined_kernel<<<sm_count() * AdamStage::blocks, 256, bytes, stream>>>(args, constants);
    check_launch("adam_step");
    return;
  }
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

}  // namespace teratron::cuda
