// A training as its checkpoints see it.
#pragma once

#include <memory>
#include <string>

#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/models/family.h"
#include "teratron/settings/arguments.h"
#include "teratron/train/checkpoint/train_state.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

struct CheckpointedRun {
  const Arguments& args;
  TrainEngine& engine;
  const TrainState& state;
  const Family& family;
  std::string config;                                    // checkpoint_config()
  std::shared_ptr<const NodeFolders> folders = nullptr;  // behind --save

  HostGroup& ranks() const { return *engine.mesh().world().communicator; }
  bool is_first_rank() const { return engine.mesh().rank() == 0; }
};

/// What tells a tokenizer from others, whatever its files are called. Reads them.
std::string tokenizer_hash(const Arguments& args);

/// The settings of a run as its checkpoints hold them, with absolute paths: JSON.
std::string checkpoint_config(const Arguments& args, const Family& family, const EngineOptions& options);
/// `config` with what tells the run from others (start.h), for the rank whose settings are saved.
/// `finetunes`: the run began with --finetune.
std::string with_identity(const std::string& config, const Arguments& args, bool finetunes);

}  // namespace teratron
