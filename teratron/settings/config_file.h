// The YAML file that --config-file (or Megatron-LM's --yaml-cfg) names: plain field names, or a configuration
// of Accelerate with its megatron_lm_config section.
#pragma once

#include <string>

#include "teratron/base/config/config.h"
#include "teratron/base/environment.h"

namespace teratron {

/// A file, who asked for it, and the table of what it may set.
struct ConfigFileRequest {
  std::string path;
  std::string where;
  const Schema& schema;
  bool launched = false;  // by `teratron launch`, which has obeyed its keys
};

/// Adds the settings of the file, those of the files that its base: names first. Problems are collected with
/// file:line:column; nothing is thrown.
void read_config_file(const ConfigFileRequest& request, Settings& settings);

/// What Accelerate's launcher says in MEGATRON_LM_* variables when ACCELERATE_USE_MEGATRON_LM is true.
void read_accelerate_environment(const Environment& environment, Settings& settings);

}  // namespace teratron
