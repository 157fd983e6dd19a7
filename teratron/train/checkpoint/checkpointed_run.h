// A training as its checkpoints see it.
#pragma once

#include <string>

#include "teratron/models/family.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/checkpoint/train_state.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

struct CheckpointedRun {
  const Arguments& args;
  TrainEngine& engine;
  const TrainState& state;
  std::string config;  // checkpoint_config()

  HostGroup& ranks() const { return *engine.mesh().world().communicator; }
  bool is_first_rank() const { return engine.mesh().rank() == 0; }
};

/// The settings of a run as its checkpoints hold them, with absolute paths: JSON.
std::string checkpoint_config(const Arguments& args, const Family& family, const EngineOptions& options);

}  // namespace teratron
