// FLOPs of a training step by formula, as Megatron-LM logs them (forward and both backward GEMMs, without
// recomputation), and model FLOPs utilization (MFU).
//
// B samples of L tokens, h hidden, q = heads * kv_channels, k = v = groups * kv_channels, V padded
// vocabulary, c = 3 matrices per MLP with SwiGLU, else 2:
//
//   causal   B L [6 h (ffn c dense + (ffn_moe topk + shared) c moe) + 6 layers (h (q + k + v) + q h)
//                 + 6 mtp (3 h + 2 h^2) + 6 h V (1 + mtp)] + 6 layers q sum(L_i^2)
//            counts the half of the attention scores that a causal mask leaves (current Megatron-LM)
//   full     12 B L layers h^2 [(1 + groups/heads + L/h) q/h + (ffn/h) topk (1.5 with SwiGLU)
//            + V / (2 layers h)]
//            counts all scores (Megatron-LM core 0.7); logs of the two versions differ for the same run
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

struct GPTConfig;
ModelShape model_shape(const GPTConfig& config);

enum class FlopsConvention : uint8_t { causal, full };

struct BatchShape {
  int64_t samples = 0;
  int64_t sequence_length = 0;
  /// Sum of squared lengths of packed documents, for `causal`; default samples * sequence_length^2.
  std::optional<double> squared_lengths = std::nullopt;
};

/// FLOPs of one step over the batch, on all ranks together.
double training_flops(const ModelShape& model, const BatchShape& batch,
                      FlopsConvention convention = FlopsConvention::causal);

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

/// Peak FLOP/s without sparsity, from NVIDIA's data sheets, by the driver's device name ("NVIDIA H200");
/// nullopt for unknown devices.
std::optional<double> peak_flops(std::string_view device_name, MathMode mode);

}  // namespace teratron
