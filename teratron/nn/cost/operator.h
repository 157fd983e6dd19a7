// What a layer costs: the operators that a rank runs for one micro-batch, in order of forward, with the bytes
// that each moves, saves and needs meanwhile. FLOPs, memory and time (plan/) follow from these lists, without
// a built model.
//
// Each layer states its operators beside its code, as a function of its name, its options and the sizes of
// the rank (rank_sizes.h): attention/attention_cost.h, moe/moe_cost.h, and in this folder those of the
// layers of nn/ itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "teratron/nn/offload/offload_schedule.h"

namespace teratron {

/// A step of a stack of layers whose saved activations are offloaded (nn/offload).
struct OffloadStep {
  OffloadSchedule schedule;
  int64_t step = 0;
  bool offloaded() const { return step < schedule.offloaded; }
};

/// A kernel, or some that share tensors. Numbers are of one rank.
struct Operator {
  enum class Kind : uint8_t { gemm, attention, normalization, pointwise, embedding, loss };

  std::string name;  // as in checkpoints: "decoder.layers.3.mlp"
  Kind kind = Kind::pointwise;
  bool fp8 = false;           // its GEMMs run in FP8
  double flops = 0.0;         // of forward; attention counts all scores
  double masked_flops = 0.0;  // part of `flops`: scores that a causal mask hides
  /// What Megatron-LM's log counts in place of `flops`, where that is something else.
  std::optional<double> logged_flops = {};
  double bytes = 0.0;  // that forward reads and writes
  double saved = 0.0;  // bytes that forward leaves for backward
  /// Most bytes alive at once while it runs, besides those that earlier operators saved: what it saves,
  /// temporaries, and gradients that wait for earlier operators.
  double forward_peak = 0.0;
  double backward_peak = 0.0;
  /// Neighbours of equal unit save nothing in forward: backward runs them again, together. -1: none.
  int64_t recompute_unit = -1;
  std::optional<OffloadStep> offload = {};
  double kept = 0.0;  // part of `saved`: bytes that stay on the device where the step is offloaded
  /// Bytes of symmetric memory, besides all others. Operators that need as much share it.
  double windows = 0.0;

  /// Adds to all that its saved bytes are part of.
  void add_saved(double more) {
    saved += more;
    forward_peak += more;
    backward_peak += more;
  }
};

inline void append(std::vector<Operator>& all, std::vector<Operator> more) {
  for (Operator& op : more) all.push_back(std::move(op));
}

}  // namespace teratron
