// `teratron tasks --task RACE | MNLI | QQP`: finetuning and evaluation on one rank of the job.
#pragma once

#include "teratron/base/error.h"
#include "teratron/comm/world.h"
#include "teratron/settings/arguments.h"
#include "teratron/tasks/finetune/finetune_task.h"
#include "teratron/train/guards/signals.h"

namespace teratron {

/// Trains --num-train-epochs epochs, or none with --skip-train, on the weights of --load or
/// --pretrained-checkpoint. After each epoch, the accuracy on each of --valid-data is printed, and with
/// --save
///
///   iter_*                           a checkpoint
///   best_checkpointed_iteration.txt  the iteration of the most accurate epoch
///   epochs.jsonl                     epoch, iteration, accuracy, correct, examples
///
/// --json receives the figures of the last epoch and, as `best`, those of the most accurate one, whose
/// predictions are in --predictions. `parsed` is finished for the world's size. Collective.
ExitCode finetune_task(const FinetuneTask& task, const ParsedArguments& parsed, World& world,
                       const StopSignals& signals);

}  // namespace teratron
