// What losses per token count in a step.
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/models/model_plan.h"
#include "teratron/train/engine/microbatch_buffer.h"

namespace teratron {

/// UserError(config) for a model of several losses, each with its own count.
void check_per_token_loss(const ModelPlan& model);

/// ModelPlan::loss_counts of the first `microbatches` of a step, which it reads, on all replicas; undefined
/// without.
at::Tensor step_loss_counts(const ModelPlan& model, MicroBatchBuffer& batches, int64_t microbatches,
                            const Group& replicas);

}  // namespace teratron
