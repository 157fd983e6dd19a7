// Megatron-LM's first log lines: batch sizes, number of steps, seed, vocabulary.
#pragma once

#include "teratron/models/model_plan.h"
#include "teratron/optim/batch_schedule.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// `train_iters`: steps of the whole training.
void print_setup(const Arguments& args, const BatchSchedule& batches, int64_t train_iters,
                 const ModelPlan& plan);

}  // namespace teratron
