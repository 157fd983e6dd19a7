// A part of a layer that computes an update of the residual stream: attention, a recurrence, a feed-forward
// network (feed_forward.h).
#pragma once

#include "teratron/nn/layer.h"

namespace teratron {

class Mixer {
 public:
  virtual ~Mixer() = default;
  /// residual + dropout(mix(x)): x [S, B, H] -> [S, B, H], S local under sequence parallelism. `state`: of
  /// make_state(), in a generation (LayerContext::generation); null in training.
  virtual Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                                      const LayerContext& context, LayerState* state) = 0;
  /// What it keeps of the sequences of a generation; null: nothing. `before`: of the layer's part before this
  /// one, whose pages it may use, too; may be null.
  virtual std::unique_ptr<LayerState> make_state(LayerState* /*before*/) const { return nullptr; }
};

}  // namespace teratron
