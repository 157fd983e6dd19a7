// Megatron-LM's first log lines: batch sizes, number of steps, seed, vocabulary. Memory of a rank.
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/models/family.h"
#include "teratron/models/model_plan.h"
#include "teratron/optim/batch_schedule.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/data/train_data.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

/// `train_iters`: steps of the whole training.
void print_setup(const Arguments& args, const BatchSchedule& batches, int64_t train_iters,
                 const ModelPlan& plan);

/// Whether the logged loss, the mean over all tokens that count in a batch, is not what is minimised: the
/// mean of its micro-batches' means.
bool minimises_other_mean(const Arguments& args, const ModelPlan& plan);

/// Bytes that a rank holds from the first to the last step.
struct StateMemory {
  int64_t parameters = 0;  // elements
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // moments and master weights
};

StateMemory state_memory(TrainEngine& engine);
/// "memory of weights, gradients and optimizer: 2.0 + 4.0 + 2.5 = 8.5 bytes per parameter, 1.23 GB".
std::string to_string(const StateMemory& memory);

/// "building BERT model ...", with the name of the model's family.
void print_building_model(const Family& family);

/// The number of parameters of every (tensor, pipeline) rank of the first replica: rank 0 prints the first
/// 16, other ranks their own. Collective over the model-parallel ranks.
void print_parameters(const Mesh& mesh, int64_t parameters);

/// run_clm's lines about a training in epochs.
void print_epochs(const Arguments& args, const TrainEpoch& epoch, int64_t train_iters);

/// Megatron-LM's lines around the building of the data: "> building train, ...", "> finished creating ...".
void print_building_data(const Family& family);
void print_finished_data(const Family& family);

}  // namespace teratron
