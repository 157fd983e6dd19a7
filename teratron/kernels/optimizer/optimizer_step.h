// One step of AdamW or SGD over a flat shard of parameters: a single pass over master weights, gradients and
// moments. Everything that changes from step to step is read from device memory, so that the host never waits: learning
// rates, step count, gradient factor, and the flag that makes the step a no-op (overflow, NaN).
//
//   g = grad * grad_scale
//   adamw (torch.optim.AdamW; Loshchilov, Hutter 2019), t = step:
//     p <- p (1 - lr wd);  m <- m + (1 - beta1)(g - m);  v <- beta2 v + (1 - beta2) g^2
//     p <- p - lr/(1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   adam, coupled (torch.optim.Adam with weight_decay):  g <- g + wd p instead of the decay of p
//   sgd (torch.optim.SGD):  g <- g + wd p;  b <- momentum b + g;  p <- p - lr b
//
// Master weights are fp32. Of a model in f16 they lie beside its weights, which receive them rounded (`copy`). Of a model in
// bf16 its weights are one half of them, and `remainder` the other (split_float.h): six bytes become four.
//
// Shapes: flat contiguous [n]. Dtypes: param f32, with copy f16 or undefined; or param bf16 with remainder int16; moments
// f32; grad f32, bf16, f16. Or everything f64, without copy. Parameters are laid out so that every block of 64 elements belongs to one
// group: groups uint8 [ceil(n / 64)] with lr, weight_decay f64 [number of groups]; groups undefined = all
// group 0. CPU and CUDA; asynchronous on the current CUDA stream. Bitwise reproducible.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

inline constexpr int64_t optimizer_block = 64;

/// Scalars in the memory of the device of the shard.
struct StepScalars {
  at::Tensor lr;            // f64 [groups]
  at::Tensor weight_decay;  // f64 [groups]
  at::Tensor step;          // int64 [1]: number of this step, from 1 (advance_step_ counts)
  at::Tensor grad_scale;    // f32 [1]: 1/loss scale times the clip factor; undefined = 1
  at::Tensor found_inf;     // f32 [1]: not 0 = leave everything as it is; undefined = never
};

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled_weight_decay = true;  // false: Adam with L2 regularisation
};

struct Weights {
  at::Tensor param;
  at::Tensor remainder = {};  // with param in bf16
  at::Tensor copy = {};       // receives param rounded; may be undefined
};

struct AdamShard {
  Weights weights;
  at::Tensor grad;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor groups;  // may be undefined
};

void adam_step_(const AdamShard& shard, const StepScalars& scalars, const AdamOptions& options);

struct SgdShard {
  Weights weights;
  at::Tensor grad;
  at::Tensor momentum_buffer;  // zeros before the first step; undefined when momentum = 0
  at::Tensor groups;
};

void sgd_step_(const SgdShard& shard, const StepScalars& scalars, double momentum);

/// step <- step + 1 unless found_inf (may be undefined) says that the step is skipped. Call it once per
/// optimizer step, before the shards are stepped.
void advance_step_(const at::Tensor& step, const at::Tensor& found_inf);

/// The fp32 numbers [n] of which `high` (bf16) and `low` (int16) are the halves.
at::Tensor join_halves(const at::Tensor& high, const at::Tensor& low);
/// The other way: x f32 [n].
void split_into_halves(const at::Tensor& x, at::Tensor high, at::Tensor low);

}  // namespace teratron
