// What the layers of a stack read of a micro-batch.
#pragma once

#include "teratron/models/model.h"
#include "teratron/models/transformer/config.h"
#include "teratron/nn/layer.h"

namespace teratron {

/// Columns: sequence_index or position_ids [S, B]; cu_seqlens, where attention stays within segments. Dropout
/// needs sequence_index and sample ids. `rope` may be null.
LayerContext layer_context(const MicroBatch& batch, const TransformerConfig& config,
                           const RotaryEmbedding* rope);

}  // namespace teratron
