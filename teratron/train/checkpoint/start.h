// Where a training starts: the checkpoint that it resumes, the weights of --hf or --pretrained-checkpoint, or
// random weights.
#pragma once

#include <optional>

#include "teratron/train/checkpoint/checkpointed_run.h"
#include "teratron/train/checkpoint/model_checkpoint.h"

namespace teratron {

struct Start {
  std::optional<CheckpointInfo> resumed = std::nullopt;  // its counters and schedules are to be restored
  bool has_weights = false;                              // false: they are random
};

/// Loads --load's checkpoint, else the weights of --hf or --pretrained-checkpoint, and the adapters of
/// --lora. Rank 0 prints what was done. `finetuning`: which other families' checkpoints are read.
/// UserError(checkpoint) if what is asked for does not exist or does not fit. Collective over the mesh.
Start load_start(const CheckpointedRun& run, const Finetuning& finetuning);

/// Says on rank 0 what differs from the run that is resumed.
void print_resume_notices(const CheckpointedRun& run, const CheckpointInfo& resumed);

}  // namespace teratron
