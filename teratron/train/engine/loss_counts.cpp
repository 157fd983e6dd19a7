#include "teratron/train/engine/loss_counts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {

void check_per_token_loss(const ModelPlan& model) {
  if (model.losses.size() < 2) return;
  throw config_error(
      {.what = fmt::format("the model has {} losses, each with its own count", model.losses.size()),
       .where = "--calculate-per-token-loss",
       .fix = "Leave the flag out"});
}

at::Tensor step_loss_counts(const ModelPlan& model, MicroBatchBuffer& batches, int64_t microbatches,
                            const Group& replicas) {
  if (!model.loss_counts) return {};
  at::Tensor sum;
  for (int64_t i = 0; i < microbatches; ++i) {
    const at::Tensor counts = model.loss_counts(batches.at(i));
    sum = sum.defined() ? sum + counts : counts;
  }
  if (replicas.size > 1) replicas.communicator->all_reduce(sum, ReduceOp::sum).wait();
  return sum;
}

}  // namespace teratron
