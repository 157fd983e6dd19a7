// Attention: softmax(scale * Q K^T + bias + mask) V over several backends, optionally with a soft cap of the
// scores before bias and mask (Gemma 2), and with sinks (gpt-oss).
//
// The first backend that supports everything in the request runs:
//
//   backend       device  supports
//   flash-cpu     CPU     everything but dropout, ALiBi, biases and soft caps
//   cudnn         GPU     bf16, fp16; full, or causal with Sq = Sk; Sq > 1, D <= 128, D % 8 = 0; not if ATen
//                         must be deterministic
//   flash-varlen  GPU     bf16, fp16; segments (at most 65,535), every mask and window; D <= 256, D % 8 = 0
//   flash         GPU     the same without segments
//   fused         GPU     bf16, fp16; dropout, ALiBi and biases, or a soft cap; D <= 128, D % 8 = 0
//   math          both    everything, but stores the scores
//
// All but math need values as wide as keys; narrower ones are filled up with zeros for them.
//
// Shapes alone decide. On GPUs all are asynchronous on the current stream and can be captured in a CUDA
// graph, which then follows the contents of `segments`.
#pragma once

#include <string>

#include "teratron/nn/dropout.h"
#include "teratron/nn/tokens/packed_rows.h"

namespace teratron {

enum class Mask : uint8_t {
  full,    // every key
  causal,  // query i sees keys up to i + Sk - Sq
};

struct AttentionRequest {
  // Sq, Sk query and key lengths, B micro-batch, N query heads, G key/value heads (N % G == 0), D channels of
  // a head. Values may have another D than queries and keys.
  at::Tensor q_SBND;
  at::Tensor k_SBGD;
  at::Tensor v_SBGD;
  double scale = 1.0;
  /// c: scores s are replaced by c tanh(s / c); 0: none.
  double softcap = 0.0;
  /// [N] of this rank's heads: a score that takes part in the sum of the softmax alone, without a value.
  /// Differentiable. Without dropout, biases, soft cap. Undefined: none.
  at::Tensor sinks_N = {};
  /// Within each segment, whose own numbers of queries and keys then take the place of Sq and Sk.
  Mask mask = Mask::causal;
  /// Undefined: each sample is one segment.
  Segments segments;
  /// Tokens of the longest segment, at most; 0: not known.
  int64_t longest_segment = 0;
  /// For self-attention over one row of several samples; `segments` are its samples.
  PackedRows packed;
  /// Sliding window (Beltagy et al. 2020): number of keys that a causal query sees, its own position
  /// included; 0: all.
  int64_t window = 0;
  /// Causal queries see keys of their chunk alone: chunks of so many tokens from the beginning of each
  /// segment on (Llama 4). 0: no chunks. Not in packed rows.
  int64_t chunk = 0;
  /// [N] ALiBi slopes of this rank's heads (nn/attention/alibi.h); undefined: no bias.
  at::Tensor alibi_slopes;
  /// [N, Sq + Sk - 1] of this rank's heads, in f64 for f64 queries, else f32: the score of query i and key j
  /// of a sample gets the bias in column j - i + Sq - 1, which stands for the distance of the key from the
  /// query (nn/attention/relative_position.h). Differentiable. Undefined: no bias.
  at::Tensor distance_bias;
  /// Stored scores are divided by this and multiplied back in the fp32 softmax, against overflow in fp16
  /// (Megatron-LM's query-key layer scaling). Fused backends have fp32 scores anyway.
  double score_divisor = 1.0;
  double dropout = 0.0;
  DropoutKey dropout_key;
  /// Shared by layers with the same queries; null: not shared.
  std::shared_ptr<DropoutRowIds> dropout_row_ids = nullptr;
  /// i64 [Sq] or [Sq, B], index of each query in the whole sequence of its sample, for dropout; undefined:
  /// the last Sq of Sk with a causal mask, else 0, 1, ... Keys are numbered as they are.
  at::Tensor query_rows_S;
  /// Length of that sequence; 0: Sk with a causal mask, else Sq.
  int64_t sequence_length = 0;
  /// Index of this rank's first head among all heads, for layout-independent dropout.
  int64_t head_offset = 0;
  int64_t total_heads = 0;
  /// Backward recomputes scores that a backend would store.
  bool recompute = false;
};

/// -> [Sq, B, N * D] for the D of values, differentiable.
at::Tensor attention(const AttentionRequest& request);

/// Name of the backend that would run: "flash-cpu", "cudnn", "flash", "flash-varlen", "fused", "math".
std::string attention_backend(const AttentionRequest& request);

}  // namespace teratron
