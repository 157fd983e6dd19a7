// Which backend runs an attention (attention.h), chosen from shapes and types alone: by attention() for its
// tensors, and by the planner, which has none.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "teratron/base/dtype.h"

namespace teratron {

/// In the order in which they are tried.
enum class AttentionBackend : uint8_t { flash_cpu, cudnn, flash_varlen, flash, fused, math };

/// Whether a window (AttentionRequest) hides any key.
inline bool has_window(bool causal, int64_t window, int64_t keys) {
  return causal && window > 0 && window < keys;
}

/// All that decides.
struct AttentionShape {
  bool gpu = true;
  Dtype dtype = Dtype::bf16;
  int64_t queries = 0;  // of a sample
  int64_t keys = 0;
  int64_t width = 0;      // of a head
  bool one_width = true;  // of queries, keys and values
  bool causal = true;
  int64_t window = 0;                    // see AttentionRequest
  std::optional<int64_t> segments = {};  // how many; nullopt: each sample is one
  double scale = 1.0;
  double dropout = 0.0;
  bool biased = false;  // by ALiBi or by distance
  bool capped = false;  // AttentionRequest::softcap
  /// Whether the kernel of `fused` takes the tensors' strides, alignment and numbers of samples and heads.
  bool fits_fused_kernel = true;
  /// Whether ATen must be deterministic.
  bool deterministic = false;

  bool has_window() const { return teratron::has_window(causal, window, keys); }
  /// No dropout, bias and soft cap. Fused backends have scores in fp32 and ignore the divisor of scores.
  bool has_plain_scores() const { return dropout == 0.0 && !biased && !capped; }
};

/// Whether the backend supports all of it (attention.h has the table).
bool supports(AttentionBackend backend, const AttentionShape& shape);
/// The first one that does.
AttentionBackend choose_backend(const AttentionShape& shape);
/// "flash-cpu", "cudnn", "flash-varlen", "flash", "fused", "math".
std::string_view name_of(AttentionBackend backend);

}  // namespace teratron
