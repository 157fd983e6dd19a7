// The run in --save, which a training goes on with (docs/launch.md, "Going on").
//
// pretrain, finetune, tasks and custom loops ask here, and --use-checkpoint-args does before them; a restart
// by a launcher or a scheduler is the same command again.
#pragma once

#include <optional>
#include <string>

#include "teratron/base/environment.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/settings/arguments.h"

namespace teratron {

struct OwnRun {
  std::optional<CheckpointInfo> last = {};  // nullopt: no checkpoint of it can be read, as loading reports
  std::optional<int64_t> iteration = {};    // the checkpoint to go back to; default the last sound one
  bool finetunes = false;                   // it began with --finetune
};

/// The run in --save; nullopt if the training does not go on with it: there is none, or --fresh puts it
/// aside, or --skip-train evaluates --load. Reads manifests, so one rank of many calls it. Not collective.
std::optional<OwnRun> find_own_run(const Arguments& args);

/// Whether --load is another folder than --save.
bool loads_elsewhere(const Arguments& args);
/// Whether a training that does not go on with --save reads --load. --fresh leaves out the run's folder.
bool reads_load(const Arguments& args);

/// The last checkpoint in a folder whose manifest can be read, or the folder itself. With `iteration` that
/// one. Not collective.
std::optional<CheckpointInfo> last_checkpoint(const std::string& directory,
                                              std::optional<int64_t> iteration = std::nullopt);

/// A name of this job that its restarts share; empty if its launcher gives none. `teratron launch`, torchrun
/// and Slurm do.
std::string job_name(const Environment& environment);

}  // namespace teratron
