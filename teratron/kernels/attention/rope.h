// Rotary position embedding (Su et al. 2021, "RoFormer"). In every head the first r = 2 * cos.size(1)
// channels are rotated in pairs by the angle of the token's position; the others pass unchanged
// (rotary_percent < 1).
//
//   half:         pairs (i, i + r/2)     Hugging Face's rotate_half, Megatron-LM's default
//   interleaved:  pairs (2i, 2i + 1)     Megatron-LM's --rotary-interleaved
//   (a, b) -> (a cos - b sin, b cos + a sin);   inverse (the backward): sin -> -sin
//
// Shapes: x [S, B, N, D] or [S, B, G, N, D], any strides but the last, which is 1: q or k as views of packed
// QKV [S, B, G, heads/G + 2, D]; its narrow(3, 0, heads/G + 1) rotates q and k in one call. cos, sin f32 (f64
// for f64 x) [P, r/2], contiguous: a row per position, with any attention factor (YaRN) included. positions
// int64 [S, B], any strides (expand it for a shared row); every value in [0, P): checked on CPU, undefined
// behaviour on the GPU. Dtypes of x: f32, bf16, f16, f64. Asynchronous on the current CUDA stream.
// Measurements: docs/notes/attention.md.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

enum class RopeStyle : uint8_t { half, interleaved };
enum class RopeDirection : uint8_t { forward, inverse };

struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

struct RopeOptions {
  RopeStyle style = RopeStyle::half;
  RopeDirection direction = RopeDirection::forward;
};

/// Asserts that table and positions fit x, as above.
void require_rotation(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions);

/// Rotates x in place.
void rope_(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions,
           const RopeOptions& options);

/// Rotates into `out`, of x's shape and any strides but the last, which is 1.
void rope_into(const at::Tensor& x, const at::Tensor& out, const RopeTable& table,
               const at::Tensor& positions, const RopeOptions& options);

/// Copies x to `out` under the same conditions, without rotation.
void copy_heads(const at::Tensor& x, const at::Tensor& out);

/// Rotates into a new contiguous tensor.
at::Tensor rope(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions,
                const RopeOptions& options);

}  // namespace teratron
