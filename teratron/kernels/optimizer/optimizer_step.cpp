#include "teratron/kernels/optimizer/optimizer_step.h"

#include <bit>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/optimizer/launchers.h"
#include "teratron/kernels/optimizer/split_master_weights.h"

namespace teratron {
namespace {

void check_scalars(const StepScalars& s, const at::Tensor& param) {
  const auto check = [&](const at::Tensor& t, at::ScalarType type) {
    TERATRON_ASSERT(t.scalar_type() == type && t.is_contiguous() && t.numel() >= 1 &&
                    t.device() == param.device());
  };
  check(s.lr, at::kDouble);
  check(s.weight_decay, at::kDouble);
  check(s.step, at::kLong);
  if (s.grad_scale.defined()) check(s.grad_scale, at::kFloat);
  if (s.found_inf.defined()) check(s.found_inf, at::kFloat);
  TERATRON_ASSERT(s.lr.numel() == s.weight_decay.numel() && s.lr.numel() <= 256, "{} groups", s.lr.numel());
}

void check_weights(const MasterWeights& weights) {
  const auto& [param, remainder, copy] = weights;
  require_float(param, "param");
  const bool split = param.scalar_type() == at::kBFloat16;
  TERATRON_ASSERT(split || accumulation_type(param) == param.scalar_type(), "master weights are f32 or f64");
  TERATRON_ASSERT(split == remainder.defined() && !(split && copy.defined()),
                  "bf16 weights need a remainder");
  const auto check = [&](const at::Tensor& t, at::ScalarType type) {
    TERATRON_ASSERT(t.scalar_type() == type && t.is_contiguous() && t.numel() == param.numel() &&
                    t.device() == param.device());
  };
  if (split) check(remainder, at::kShort);
  TERATRON_ASSERT(!copy.defined() || param.scalar_type() == at::kFloat, "f64 weights have no model copy");
  if (copy.defined()) check(copy, at::kHalf);
}

/// Everything but the moments.
cuda::StepArgs describe(const MasterWeights& weights, const at::Tensor& grad, const at::Tensor& groups,
                        const StepScalars& s) {
  const auto& [param, remainder, copy] = weights;
  check_weights(weights);
  require_float(grad, "grad");
  check_scalars(s, param);
  TERATRON_ASSERT(grad.numel() == param.numel() && grad.device() == param.device());
  TERATRON_ASSERT((grad.scalar_type() == at::kDouble) == (param.scalar_type() == at::kDouble));
  const int64_t n = param.numel();
  if (groups.defined()) {
    TERATRON_ASSERT(groups.scalar_type() == at::kByte && groups.is_contiguous() &&
                    groups.device() == param.device() &&
                    groups.numel() == (n + optimizer_block - 1) / optimizer_block);
  }
  return {.n = n,
          .param_dtype = dtype_of(param),
          .grad_dtype = dtype_of(grad),
          .param = address(param),
          .remainder = static_cast<int16_t*>(address(remainder)),
          .copy = address(copy),
          .grad = address(grad),
          .moment1 = nullptr,
          .moment2 = nullptr,
          .groups = static_cast<const uint8_t*>(address(groups)),
          .lr = s.lr.const_data_ptr<double>(),
          .weight_decay = s.weight_decay.const_data_ptr<double>(),
          .group_count = static_cast<int>(s.lr.numel()),
          .step = s.step.const_data_ptr<int64_t>(),
          .grad_scale = static_cast<const float*>(address(s.grad_scale)),
          .found_inf = static_cast<const float*>(address(s.found_inf))};
}

void* moment(const at::Tensor& t, const at::Tensor& param, const char* what) {
  TERATRON_ASSERT(t.defined() && t.scalar_type() == accumulation_type(param) && t.is_contiguous() &&
                      t.numel() == param.numel() && t.device() == param.device(),
                  "{}", what);
  return address(t);
}

bool skipped(const cuda::StepArgs& args) {
  return args.found_inf != nullptr && *args.found_inf != 0;
}

/// Calls f(first, count, group) for every block of 64 elements, in parallel.
template <typename F>
void for_blocks(const cuda::StepArgs& args, F&& f) {
  const int64_t blocks = (args.n + optimizer_block - 1) / optimizer_block;
  at::parallel_for(0, blocks, 256, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * optimizer_block;
      f(first, std::min(optimizer_block, args.n - first), args.groups == nullptr ? 0 : args.groups[block]);
    }
  });
}

/// The block's scaled gradient.
template <typename A>
void load_gradient(const cuda::StepArgs& args, int64_t first, int64_t count, A* g) {
  switch (args.grad_dtype) {
    case Dtype::f64:
      convert(static_cast<const double*>(args.grad) + first, g, count);
      break;
    case Dtype::f32:
      convert(static_cast<const float*>(args.grad) + first, g, count);
      break;
    case Dtype::bf16:
      convert(static_cast<const at::BFloat16*>(args.grad) + first, g, count);
      break;
    default:
      convert(static_cast<const at::Half*>(args.grad) + first, g, count);
  }
  if (args.grad_scale == nullptr) return;
  const A scale = static_cast<A>(*args.grad_scale);
  for (int64_t i = 0; i < count; ++i) g[i] *= scale;
}

/// The master weights of a block: in place, or joined in `buffer`.
template <typename A>
A* load_weights(const cuda::StepArgs& args, int64_t first, int64_t count, A* buffer) {
  if (args.remainder == nullptr) return static_cast<A*>(args.param) + first;
  const auto* const high = static_cast<const uint16_t*>(args.param) + first;
  const int16_t* const low = args.remainder + first;
  for (int64_t i = 0; i < count; ++i) buffer[i] = std::bit_cast<float>(join_master_weight({high[i], low[i]}));
  return buffer;
}

template <typename A>
void store_weights(const cuda::StepArgs& args, int64_t first, int64_t count, const A* p) {
  if (args.copy != nullptr) convert(p, static_cast<at::Half*>(args.copy) + first, count);
  if (args.remainder == nullptr) return;
  auto* const high = static_cast<uint16_t*>(args.param) + first;
  int16_t* const low = args.remainder + first;
  for (int64_t i = 0; i < count; ++i) {
    const SplitWeight split = split_master_weight(std::bit_cast<uint32_t>(static_cast<float>(p[i])));
    high[i] = split.high;
    low[i] = split.low;
  }
}

template <typename A>
void adam_cpu(const cuda::StepArgs& args, const cuda::AdamConstants& c) {
  const double t = static_cast<double>(*args.step);
  const double correction1 = 1 - std::pow(c.beta1, t);
  const A root_correction2 = static_cast<A>(std::sqrt(1 - std::pow(c.beta2, t)));
  const A rest1 = static_cast<A>(1 - c.beta1), beta2 = static_cast<A>(c.beta2);
  const A rest2 = static_cast<A>(1 - c.beta2), eps = static_cast<A>(c.eps);
  for_blocks(args, [&](int64_t first, int64_t count, int group) {
    A g[optimizer_block], buffer[optimizer_block];
    load_gradient(args, first, count, g);
    A* const p = load_weights(args, first, count, buffer);
    A* const m = static_cast<A*>(args.moment1) + first;
    A* const v = static_cast<A*>(args.moment2) + first;
    const A decay = static_cast<A>(args.weight_decay[group]);
    const A keep = static_cast<A>(1 - args.lr[group] * args.weight_decay[group]);
    const A rate = static_cast<A>(args.lr[group] / correction1);
    for (int64_t i = 0; i < count; ++i) {
      if (c.decoupled) {
        p[i] *= keep;
      } else {
        g[i] += decay * p[i];
      }
      m[i] += rest1 * (g[i] - m[i]);
      v[i] = beta2 * v[i] + rest2 * g[i] * g[i];
      p[i] -= rate * (m[i] / (std::sqrt(v[i]) / root_correction2 + eps));
    }
    store_weights(args, first, count, p);
  });
}

template <typename A>
void sgd_cpu(const cuda::StepArgs& args, A momentum) {
  for_blocks(args, [&](int64_t first, int64_t count, int group) {
    A g[optimizer_block], buffer[optimizer_block];
    load_gradient(args, first, count, g);
    A* const p = load_weights(args, first, count, buffer);
    const A decay = static_cast<A>(args.weight_decay[group]);
    const A rate = static_cast<A>(args.lr[group]);
    for (int64_t i = 0; i < count; ++i) g[i] += decay * p[i];
    if (args.moment1 != nullptr) {
      A* const b = static_cast<A*>(args.moment1) + first;
      for (int64_t i = 0; i < count; ++i) g[i] = b[i] = momentum * b[i] + g[i];
    }
    for (int64_t i = 0; i < count; ++i) p[i] -= rate * g[i];
    store_weights(args, first, count, p);
  });
}

}  // namespace

void adam_step_(const AdamShard& shard, const StepScalars& scalars, const AdamOptions& options) {
  cuda::StepArgs args = describe(shard.weights, shard.grad, shard.groups, scalars);
  const at::Tensor& param = shard.weights.param;
  args.moment1 = moment(shard.exp_avg, param, "exp_avg");
  args.moment2 = moment(shard.exp_avg_sq, param, "exp_avg_sq");
  const cuda::AdamConstants constants{.beta1 = options.beta1,
                                      .beta2 = options.beta2,
                                      .eps = options.eps,
                                      .decoupled = options.decoupled_weight_decay};
  if (args.n == 0) return;
  if (param.is_cuda()) {
    cuda::adam_step(args, constants, current_stream(param));
  } else if (!skipped(args)) {
    if (args.param_dtype == Dtype::f64) {
      adam_cpu<double>(args, constants);
    } else {
      adam_cpu<float>(args, constants);
    }
  }
}

void sgd_step_(const SgdShard& shard, const StepScalars& scalars, double momentum) {
  cuda::StepArgs args = describe(shard.weights, shard.grad, shard.groups, scalars);
  const at::Tensor& param = shard.weights.param;
  if (momentum != 0) args.moment1 = moment(shard.momentum_buffer, param, "momentum_buffer");
  if (args.n == 0) return;
  if (param.is_cuda()) {
    cuda::sgd_step(args, momentum, current_stream(param));
  } else if (!skipped(args)) {
    if (args.param_dtype == Dtype::f64) {
      sgd_cpu<double>(args, momentum);
    } else {
      sgd_cpu<float>(args, static_cast<float>(momentum));
    }
  }
}

void advance_step_(const at::Tensor& step, const at::Tensor& found_inf) {
  TERATRON_ASSERT(step.scalar_type() == at::kLong && step.numel() == 1);
  TERATRON_ASSERT(!found_inf.defined() ||
                  (found_inf.scalar_type() == at::kFloat && found_inf.device() == step.device()));
  int64_t* const count = step.mutable_data_ptr<int64_t>();
  const float* const flag = static_cast<const float*>(address(found_inf));
  if (step.is_cuda()) {
    cuda::advance_step(count, flag, current_stream(step));
  } else if (flag == nullptr || *flag == 0) {
    ++*count;
  }
}

namespace {

cuda::SplitWeightsArgs split_args(const at::Tensor& x, const at::Tensor& high, const at::Tensor& low) {
  TERATRON_ASSERT(x.scalar_type() == at::kFloat && high.scalar_type() == at::kBFloat16 &&
                  low.scalar_type() == at::kShort);
  for (const at::Tensor& t : {x, high, low}) {
    TERATRON_ASSERT(t.is_contiguous() && t.numel() == x.numel() && t.device() == x.device());
  }
  return {.n = x.numel(),
          .x = static_cast<uint32_t*>(address(x)),
          .high = static_cast<uint16_t*>(address(high)),
          .low = static_cast<int16_t*>(address(low))};
}

}  // namespace

at::Tensor join_master_weights(const at::Tensor& high, const at::Tensor& low) {
  at::Tensor x = at::empty(high.sizes(), high.options().dtype(at::kFloat).requires_grad(false));
  const cuda::SplitWeightsArgs args = split_args(x, high, low);
  if (args.n == 0) return x;
  if (x.is_cuda()) {
    cuda::join_master_weights(args, current_stream(x));
  } else {
    at::parallel_for(0, args.n, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) args.x[i] = join_master_weight({args.high[i], args.low[i]});
    });
  }
  return x;
}

void split_master_weights(const at::Tensor& x, at::Tensor high, at::Tensor low) {
  const cuda::SplitWeightsArgs args = split_args(x, high, low);
  if (args.n == 0) return;
  if (x.is_cuda()) {
    cuda::split_master_weights(args, current_stream(x));
  } else {
    at::parallel_for(0, args.n, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const SplitWeight split = split_master_weight(args.x[i]);
        args.high[i] = split.high;
        args.low[i] = split.low;
      }
    });
  }
}

}  // namespace teratron
