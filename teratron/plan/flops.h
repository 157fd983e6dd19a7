// Floating-point operations of a training step by formula, as Megatron-LM logs them (forward, both backward
// products; recomputation is not counted), and what share of the hardware's peak they are.
//
// B samples, L tokens each, h hidden, q = heads * kv_channels, k = v = groups * kv_channels, V padded
// vocabulary, c = 3 with SwiGLU, else 2 matrices per MLP:
//
//   causal   B L [6 h (ffn c dense + (ffn_moe topk + shared) c moe) + 6 layers (h (q + k + v) + q h)
//                 + 6 mtp (3 h + 2 h^2) + 6 h V (1 + mtp)] + 6 layers q sum(L_i^2)
//            the last term counts only the half of the scores that a causal mask leaves (current Megatron-LM)
//   full     12 B L layers h^2 [(1 + groups/heads + L/h) q/h + (ffn/h) topk (1.5 with SwiGLU)
//            + V / (2 layers h)]
//            counts all scores (Megatron-LM core 0.7): logs of the two versions differ for the same run
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace teratron {

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_channels = 0;
  int64_t query_groups = 0;  // = heads without grouped-query attention
  int64_t ffn_hidden = 0;
  int64_t padded_vocab = 0;
  bool swiglu = false;
  int64_t moe_layers = 0;  // of the `layers`
  int64_t moe_ffn_hidden = 0;
  int64_t moe_top_k = 1;
  int64_t moe_shared_ffn_hidden = 0;
  int64_t mtp_layers = 0;  // multi-token prediction
};

enum class FlopsConvention : uint8_t { causal, full };

struct BatchShape {
  int64_t samples = 0;
  int64_t sequence_length = 0;
  /// Sum of squared lengths of packed documents; samples * sequence_length^2 when absent. Only `causal` uses
  /// it.
  std::optional<double> squared_lengths = std::nullopt;
};

/// FLOPs of one step over the batch, all ranks together.
double training_flops(const ModelShape& model, const BatchShape& batch,
                      FlopsConvention convention = FlopsConvention::causal);

struct StepWork {
  double flops = 0.0;
  double seconds = 0.0;
  int64_t world_size = 1;
  double peak_flops_per_gpu = 0.0;  // 0: unknown
};

struct Throughput {
  double tflops_per_gpu = 0.0;
  double mfu = 0.0;  // share of the peak, 0 to 1; 0 where the peak is unknown
};

/// flops / (seconds * 10^12 * world_size); zeros for a step without duration.
Throughput throughput(const StepWork& work);

enum class MathMode : uint8_t { fp32, half, fp8 };  // half: fp16 or bf16; fp32: TF32 where the GPU has it

/// Dense peak in FLOP/s by the name that the driver reports ("NVIDIA H200"); nothing for unknown devices.
/// Figures without sparsity from NVIDIA's data sheets.
std::optional<double> peak_flops(std::string_view device_name, MathMode mode);

}  // namespace teratron
