// The last sums of gradients, as Megatron-LM's finalize_model_grads.
//
// Buckets reduce gradients over the replicas while backward runs (optim/param_and_grad_buffer.h). Three kinds
// of gradients are then still partial sums. Tensor-parallel ranks replicate some parameters and use them for
// other tokens or heads (ParameterOptions::grad_sum). Some of them share rows of a weight: a key/value head
// that each uses for other query heads (Shard::sharers). Pipeline stages tie parameters: the first and the
// last stage share the word embeddings.
#pragma once

#include "teratron/optim/param_and_grad_buffer.h"

namespace teratron {

/// After ParamAndGradBuffers::finish_grad_sync(). Tied gradients are summed where this rank owns them.
void finalize_grads(ParamAndGradBuffers& buffers, const Mesh& mesh);

}  // namespace teratron
