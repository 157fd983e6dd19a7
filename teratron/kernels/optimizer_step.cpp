#include "teratron/kernels/optimizer_step.h"

#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/optimizer_step_cuda.h"
#include "teratron/kernels/stream.h"

#pragma GCC optimize("O3")

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

/// Everything but the moments.
cuda::StepArgs describe(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& copy,
                        const at::Tensor& groups, const StepScalars& s) {
  require_float(param, "param");
  require_float(grad, "grad");
  check_scalars(s, param);
  TERATRON_ASSERT(accumulation_type(param) == param.scalar_type(), "master parameters are f32 or f64");
  TERATRON_ASSERT(grad.numel() == param.numel() && grad.device() == param.device());
  TERATRON_ASSERT(grad.scalar_type() == param.scalar_type() || param.scalar_type() == at::kFloat);
  const int64_t n = param.numel();
  if (copy.defined()) {
    require_float(copy, "copy");
    TERATRON_ASSERT(copy.numel() == n && copy.device() == param.device());
    TERATRON_ASSERT(copy.scalar_type() == at::kBFloat16 || copy.scalar_type() == at::kHalf);
  }
  if (groups.defined()) {
    TERATRON_ASSERT(groups.scalar_type() == at::kByte && groups.is_contiguous() &&
                    groups.device() == param.device() &&
                    groups.numel() == (n + optimizer_block - 1) / optimizer_block);
  }
  return {.n = n,
          .param_dtype = dtype_of(param),
          .grad_dtype = dtype_of(grad),
          .copy_dtype = copy.defined() ? dtype_of(copy) : Dtype::bf16,
          .param = address(param),
          .grad = address(grad),
          .moment1 = nullptr,
          .moment2 = nullptr,
          .copy = address(copy),
          .groups = static_cast<const uint8_t*>(address(groups)),
          .lr = s.lr.const_data_ptr<double>(),
          .weight_decay = s.weight_decay.const_data_ptr<double>(),
          .group_count = static_cast<int>(s.lr.numel()),
          .step = s.step.const_data_ptr<int64_t>(),
          .grad_scale = static_cast<const float*>(address(s.grad_scale)),
          .found_inf = static_cast<const float*>(address(s.found_inf))};
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
void read_gradient(const cuda::StepArgs& args, int64_t first, int64_t count, A* g) {
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

template <typename A>
void write_copy(const cuda::StepArgs& args, int64_t first, int64_t count) {
  if (args.copy == nullptr) return;
  const A* const p = static_cast<const A*>(args.param) + first;
  if (args.copy_dtype == Dtype::bf16) {
    convert(p, static_cast<at::BFloat16*>(args.copy) + first, count);
  } else {
    convert(p, static_cast<at::Half*>(args.copy) + first, count);
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
    A g[optimizer_block];
    read_gradient(args, first, count, g);
    A* const p = static_cast<A*>(args.param) + first;
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
    write_copy<A>(args, first, count);
  });
}

template <typename A>
void sgd_cpu(const cuda::StepArgs& args, A momentum) {
  for_blocks(args, [&](int64_t first, int64_t count, int group) {
    A g[optimizer_block];
    read_gradient(args, first, count, g);
    A* const p = static_cast<A*>(args.param) + first;
    const A decay = static_cast<A>(args.weight_decay[group]);
    const A rate = static_cast<A>(args.lr[group]);
    for (int64_t i = 0; i < count; ++i) g[i] += decay * p[i];
    if (args.moment1 != nullptr) {
      A* const b = static_cast<A*>(args.moment1) + first;
      for (int64_t i = 0; i < count; ++i) g[i] = b[i] = momentum * b[i] + g[i];
    }
    for (int64_t i = 0; i < count; ++i) p[i] -= rate * g[i];
    write_copy<A>(args, first, count);
  });
}

}  // namespace

void adam_step_(const AdamShard& shard, const StepScalars& scalars, const AdamOptions& options) {
  cuda::StepArgs args = describe(shard.param, shard.grad, shard.copy, shard.groups, scalars);
  require_like(shard.exp_avg, shard.param, args.n, "exp_avg");
  require_like(shard.exp_avg_sq, shard.param, args.n, "exp_avg_sq");
  args.moment1 = address(shard.exp_avg);
  args.moment2 = address(shard.exp_avg_sq);
  const cuda::AdamConstants constants{.beta1 = options.beta1,
                                      .beta2 = options.beta2,
                                      .eps = options.eps,
                                      .decoupled = options.decoupled_weight_decay};
  if (args.n == 0) return;
  if (shard.param.is_cuda()) {
    cuda::adam_step(args, constants, current_stream(shard.param));
  } else if (!skipped(args)) {
    if (args.param_dtype == Dtype::f64) {
      adam_cpu<double>(args, constants);
    } else {
      adam_cpu<float>(args, constants);
    }
  }
}

void sgd_step_(const SgdShard& shard, const StepScalars& scalars, double momentum) {
  cuda::StepArgs args = describe(shard.param, shard.grad, shard.copy, shard.groups, scalars);
  TERATRON_ASSERT(momentum == 0 || shard.momentum_buffer.defined(), "momentum needs its buffer");
  if (momentum != 0) {
    require_like(shard.momentum_buffer, shard.param, args.n, "momentum_buffer");
    args.moment1 = address(shard.momentum_buffer);
  }
  if (args.n == 0) return;
  if (shard.param.is_cuda()) {
    cuda::sgd_step(args, momentum, current_stream(shard.param));
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

}  // namespace teratron
