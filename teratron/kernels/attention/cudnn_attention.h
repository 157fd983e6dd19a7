// Backward of cuDNN's fused attention. ATen's chooses where the gradients go; this one writes them where they are wanted, so
// that those of queries, keys and values can be one tensor without a copy.
//
// Shapes: N heads of queries in G groups, each with a key and a value (N a multiple of G). bf16 or f16, any strides but the
// last, which is 1; 16-byte aligned, no two elements in one place. CUDA, asynchronous on the current stream; the bits of dq do
// not repeat. The first call with a shape makes cuDNN choose its kernels, which must not happen while a CUDA graph is captured;
// the choice is kept as long as the thread lives, for each shape, strides and options.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

struct AttentionOptions {
  double scale = 1.0;  // of the scores
  bool causal = false;
};

/// Inputs and results of at::_scaled_dot_product_cudnn_attention.
struct AttentionForward {
  at::Tensor q_BNSD, k_BGSD, v_BGSD;
  at::Tensor y_BNSD;
  at::Tensor log_sum_BNS1;  // f32, of the exponentials of each query's scores
};

struct AttentionGradients {
  at::Tensor q_BNSD, k_BGSD, v_BGSD;
};

/// Fills `gradients`. Throws a Fault where cuDNN has no kernel.
void cudnn_attention_backward(const AttentionForward& forward, const at::Tensor& dy_BNSD,
                              const AttentionOptions& options, const AttentionGradients& gradients);

}  // namespace teratron
