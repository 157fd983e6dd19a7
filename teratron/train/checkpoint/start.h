// Where a training starts: the run in --save that it goes on with, the checkpoint of --load, the weights of
// --hf or --pretrained-checkpoint, or random weights.
#pragma once

#include <optional>
#include <string>

#include "teratron/models/family.h"
#include "teratron/settings/own_run.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/train/checkpoint/checkpointed_run.h"
#include "teratron/train/checkpoint/model_checkpoint.h"

namespace teratron {

/// What tells a run from others.
struct RunIdentity {
  const Arguments& args;
  const Family& family;
  const Tokenizer& tokenizer;
};
/// The run in --save (settings/own_run.h), the same on all ranks, without OwnRun::last. UserError(config)
/// with all differences if it is another one: of another model, family or tokenizer, or a pretraining where
/// this is a finetuning. Before anything is built or written. Collective.
std::optional<OwnRun> require_own_run(const RunIdentity& identity, HostGroup& ranks);

struct Start {
  std::optional<CheckpointInfo> resumed = std::nullopt;  // its counters and schedules are to be restored
  std::string folder = {};                               // of it
  bool has_weights = false;                              // false: they are random
};

/// Loads the checkpoint of the run in --save, else --load's, else the weights of --hf or
/// --pretrained-checkpoint, of ours or of Megatron-LM (megatron/load_source.h), and the adapters of --lora.
/// Rank 0 prints what was done. `finetuning`: which other families' checkpoints are read.
/// UserError(checkpoint) if what is asked for does not exist or does not fit. Collective over the mesh.
Start load_start(const CheckpointedRun& run, const Finetuning& finetuning, const std::optional<OwnRun>& own);

/// Says on rank 0 what differs from the run that is resumed.
void print_resume_notices(const CheckpointedRun& run, const CheckpointInfo& resumed);

}  // namespace teratron
