// A model as a list of operators: what a rank computes for one micro-batch, in order of forward, and the
// bytes that each moves, saves and needs meanwhile. FLOPs, memory and time (plan/) follow from this one list,
// without a built model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/nn/offload/offload_schedule.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

struct BatchShape {
  int64_t samples = 0;
  int64_t sequence_length = 0;
  /// Sum of squared segment lengths; default samples * sequence_length^2.
  std::optional<double> squared_lengths = std::nullopt;
};

/// One micro-batch as a rank of a pipeline stage sees it.
struct RankBatch {
  BatchShape batch;  // of the micro-batch
  StageSpec stage;
  bool segmented = false;  // attention stays within segments (documents)
  Dtype dtype = Dtype::bf16;
  bool fp8 = false;                  // GEMMs of the layers that the model selects
  bool fp8_weight_gradients = true;  // see Fp8Options
  bool gpu = true;                   // kernels of an H100, else of a CPU
  int64_t tensor_parallel = 1;
  bool sequence_parallel = false;
  int64_t context_parallel = 1;
  int64_t expert_parallel = 1;
  int64_t expert_tensor_parallel = 1;
};

/// A kernel, or some that share tensors. Numbers are of one rank.
/// A step of a stack of layers whose saved activations are offloaded (nn/offload).
struct OffloadStep {
  OffloadSchedule schedule;
  int64_t step = 0;
  bool offloaded() const { return step < schedule.offloaded; }
};

struct Operator {
  enum class Kind : uint8_t { gemm, attention, normalization, pointwise, embedding, loss };

  std::string name;  // as in checkpoints: "decoder.layers.3.mlp"
  Kind kind = Kind::pointwise;
  bool fp8 = false;           // its GEMMs run in FP8
  double flops = 0.0;         // of forward; attention counts all scores
  double masked_flops = 0.0;  // of these, for scores that a causal mask hides
  double bytes = 0.0;         // that forward reads and writes
  double saved = 0.0;         // bytes that forward leaves for backward
  /// Most bytes alive at once while it runs, besides those that earlier operators saved: what it saves,
  /// temporaries, and gradients that wait for earlier operators.
  double forward_peak = 0.0;
  double backward_peak = 0.0;
  /// Neighbours of equal unit save nothing in forward: backward runs them again, together. -1: none.
  int64_t recompute_unit = -1;
  std::optional<OffloadStep> offload = {};
  double kept = 0.0;  // of `saved`, bytes that stay on the device where the step is offloaded
  /// Bytes of symmetric memory, besides all others, that operators which need as much share.
  double windows = 0.0;
};

using OperatorsOf = std::function<std::vector<Operator>(const RankBatch&)>;

}  // namespace teratron
