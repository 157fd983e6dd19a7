// FLOPs of a training step, as Megatron-LM logs them (forward and both backward GEMMs, without
// recomputation), model FLOPs utilization (MFU), and the data sheets of GPUs.
//
// A step takes 3 times the FLOPs of the model's operators in forward. For a GPT of h hidden, with B samples
// of L tokens, q = heads * kv_channels, k = v = groups * kv_channels, V padded vocabulary, c = 3 matrices per
// MLP with SwiGLU, else 2, that is
//
//   causal   B L [6 layers (h ffn c + h (q + k + v) + q h) + 6 h V] + 6 layers q sum(L_i^2)
//            counts the half of the attention scores that a causal mask leaves (current Megatron-LM)
//   full     12 B L layers h^2 [(1 + groups/heads + L/h) q/h + (ffn/h) (1.5 with SwiGLU)
//            + V / (2 layers h)]
//            counts all scores (Megatron-LM core 0.7); logs of the two versions differ for the same run
//
// Frozen weights beside adapters have no weight gradient: their GEMMs count twice instead of three times. The
// adapters' own products are left out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "teratron/nn/cost/rank_sizes.h"

namespace teratron {

enum class FlopsConvention : uint8_t { causal, full };
enum class Weights : uint8_t { trained, frozen };

/// FLOPs of a step whose forward runs these operators once.
double training_flops(std::span<const Operator> operators,
                      FlopsConvention convention = FlopsConvention::causal,
                      Weights weights = Weights::trained);

struct ModelPlan;
/// FLOPs of one step over the batch, on all ranks together; 0 for a model without operators. In
/// libteratron_plan.
double training_flops(const ModelPlan& model, const BatchShape& batch,
                      FlopsConvention convention = FlopsConvention::causal,
                      Weights weights = Weights::trained);

struct MeasuredWork {
  double flops = 0.0;
  double seconds = 0.0;
  int64_t world_size = 1;
  double peak_flops_per_gpu = 0.0;  // 0: unknown
};

struct Throughput {
  double tflops_per_gpu = 0.0;
  double mfu = 0.0;  // 0 to 1; 0 if the peak is unknown
};

/// flops / (seconds * 10^12 * world_size); zeros if seconds is 0.
Throughput throughput(const MeasuredWork& work);

enum class MathMode : uint8_t { fp32, half, fp8 };  // half: fp16 or bf16; fp32: TF32 if the GPU has it

/// By NVIDIA's data sheets.
struct Gpu {
  std::string_view name;   // part of the driver's device name
  double fp32, half, fp8;  // peak FLOP/s without sparsity; 0: not supported
  double bandwidth;        // bytes/s
  double memory;           // GiB, as nvidia-smi shows; of several sizes the largest

  /// nullopt: not supported.
  std::optional<double> peak(MathMode mode) const;
};

/// By the driver's device name ("NVIDIA H200") or the model's ("H200"); null for unknown devices.
const Gpu* find_gpu(std::string_view device_name);
/// Names of the known GPUs, comma-separated.
std::string gpu_names();
/// Its peak FLOP/s; nullopt if unknown.
std::optional<double> peak_flops(std::string_view device_name, MathMode mode);

}  // namespace teratron
