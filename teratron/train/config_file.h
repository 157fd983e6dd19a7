// The YAML file that --config-file (or Megatron-LM's --yaml-cfg) names: plain field names, or a configuration
// of Accelerate with its megatron_lm_config section.
#pragma once

#include <string>

#include "teratron/base/config.h"
#include "teratron/base/environment.h"

namespace teratron {

/// Adds the settings of `path`, those of the files that its base: names first. `where` names who asked for
/// the file. Problems are collected with file:line:column; nothing is thrown.
void read_config_file(const std::string& path, const std::string& where, Settings& settings);

/// What Accelerate's launcher says in MEGATRON_LM_* variables when ACCELERATE_USE_MEGATRON_LM is true.
void read_accelerate_environment(const Environment& environment, Settings& settings);

}  // namespace teratron
