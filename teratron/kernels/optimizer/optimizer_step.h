// One AdamW or SGD step over a flat shard of parameters: a single pass over master weights, gradients and
// moments. Everything that changes between steps is read from device memory, so the host never waits:
// learning rates, step count, gradient scale, and the flag that skips the step (overflow, NaN).
//
//   g = grad * grad_scale
//   adamw (torch.optim.AdamW; Loshchilov, Hutter 2019), t = step:
//     p <- p (1 - lr wd);  m <- m + (1 - beta1)(g - m);  v <- beta2 v + (1 - beta2) g^2
//     p <- p - lr/(1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   adam, coupled (torch.optim.Adam with weight_decay):  g <- g + wd p instead of the decay of p
//   sgd (torch.optim.SGD):  g <- g + wd p;  b <- momentum b + g;  p <- p - lr b
//
// Master weights are fp32. An f16 model has a separate copy of them, rounded (`copy`). A bf16 model uses
// split master weights: its weights are the upper half, `remainder` the lower (split_master_weights.h), 4
// bytes instead of 6.
//
// Shapes: flat contiguous [n]. Dtypes: param f32, with copy f16 or undefined; or param bf16 with remainder
// int16; moments f32; grad f32, bf16, f16. Or everything f64, without copy. Every block of 64 elements
// belongs to one parameter group: groups uint8 [ceil(n / 64)] with lr, weight_decay f64 [number of groups];
// groups undefined = all in group 0. CPU and CUDA; asynchronous on the current CUDA stream. Bitwise
// reproducible.
// Measurements: docs/notes/optimizer.md.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

inline constexpr int64_t optimizer_block = 64;

/// Scalars in the memory of the shard's device.
struct StepScalars {
  at::Tensor lr;            // f64 [groups]
  at::Tensor weight_decay;  // f64 [groups]
  at::Tensor step;          // int64 [1]: number of this step, from 1 (see advance_step_)
  at::Tensor grad_scale;    // f32 [1]: 1/loss scale times the clip factor; undefined = 1
  at::Tensor found_inf;     // f32 [1]: nonzero = skip the step; undefined = never
};

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled_weight_decay = true;  // false: Adam with L2 regularization
};

struct MasterWeights {
  at::Tensor param;
  at::Tensor remainder = {};  // if param is bf16
  at::Tensor copy = {};       // receives param rounded; may be undefined
};

struct AdamShard {
  MasterWeights weights;
  at::Tensor grad;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor groups;  // may be undefined
};

void adam_step_(const AdamShard& shard, const StepScalars& scalars, const AdamOptions& options);

struct SgdShard {
  MasterWeights weights;
  at::Tensor grad;
  at::Tensor momentum_buffer;  // zeros before the first step; undefined if momentum = 0
  at::Tensor groups;
};

void sgd_step_(const SgdShard& shard, const StepScalars& scalars, double momentum);

/// step <- step + 1 unless found_inf (may be undefined) is nonzero. Call once per optimizer step, before
/// stepping the shards.
void advance_step_(const at::Tensor& step, const at::Tensor& found_inf);

/// The fp32 values [n] whose halves are `high` (bf16) and `low` (int16).
at::Tensor join_master_weights(const at::Tensor& high, const at::Tensor& low);
/// The inverse: x f32 [n].
void split_master_weights(const at::Tensor& x, at::Tensor high, at::Tensor low);

}  // namespace teratron
