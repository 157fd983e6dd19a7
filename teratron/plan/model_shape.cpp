#include "teratron/models/gpt/gpt_config.h"
#include "teratron/plan/flops.h"

namespace teratron {

ModelShape model_shape(const GPTConfig& config) {
  return {.layers = config.layers,
          .hidden = config.hidden,
          .heads = config.heads,
          .kv_channels = config.kv_channels,
          .query_groups = config.query_groups,
          .ffn_hidden = config.ffn_hidden,
          .padded_vocab = config.padded_vocabulary,
          .swiglu = is_gated(config.activation)};
}

}  // namespace teratron
