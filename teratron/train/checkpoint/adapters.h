// The adapters of --lora in a training that has them.
#pragma once

#include <map>
#include <string>

#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/train/checkpoint/checkpointed_run.h"

namespace teratron {

/// What a checkpoint of this model would hold of the weights without adapters. Collective over the mesh.
std::map<std::string, TensorInfo> base_weights(TrainEngine& engine);

/// Reads the adapters of --lora, if it is given, into the model. UserError(checkpoint) if they do not fit.
void load_adapters(const CheckpointedRun& run);

}  // namespace teratron
