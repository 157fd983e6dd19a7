// Backward of cuDNN's fused attention. Unlike ATen's, it writes gradients to given tensors, so those of q, k
// and v can be views of one tensor without a copy.
//
// Shapes: N heads of queries in G groups, each with a key and a value (N a multiple of G). bf16 or f16, any
// strides but the last, which is 1; 16-byte aligned, no overlapping elements. CUDA, asynchronous on the
// current stream; dq is not bitwise reproducible. The first call per shape, strides and options builds a
// cuDNN graph, which must not happen during CUDA graph capture; the graph is cached for the lifetime of the
// thread.
// Measurements: docs/notes/attention.md.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

struct AttentionOptions {
  double scale = 1.0;  // of the scores
  bool causal = false;
};

/// Inputs and outputs of at::_scaled_dot_product_cudnn_attention.
struct AttentionForward {
  at::Tensor q_BNSD, k_BGSD, v_BGSD;
  at::Tensor y_BNSD;
  at::Tensor logsumexp_BNS1;  // f32, log-sum-exp of each query's scores
};

struct AttentionGradients {
  at::Tensor q_BNSD, k_BGSD, v_BGSD;
};

/// Fills `gradients`. Throws a Fault if cuDNN has no kernel.
void cudnn_attention_backward(const AttentionForward& forward, const at::Tensor& dy_BNSD,
                              const AttentionOptions& options, const AttentionGradients& gradients);

}  // namespace teratron
