// YAML file of --config-file (Megatron-LM's --yaml-cfg): field names, or an Accelerate configuration with a
// megatron_lm_config section.
#pragma once

#include <string>

#include "teratron/base/config/config.h"
#include "teratron/base/environment.h"

namespace teratron {

struct ConfigFileRequest {
  std::string path;
  std::string where;
  const Schema& schema;
  bool launched = false;  // by `teratron launch`, which has applied the launcher keys
};

/// Adds the settings of the file, preceded by those of the files in its `base:`. Problems are collected with
/// file:line:column, not thrown.
void read_config_file(const ConfigFileRequest& request, ParseResult& result);

/// Adds the settings in the MEGATRON_LM_* variables of Accelerate's launcher if ACCELERATE_USE_MEGATRON_LM is
/// true.
void read_accelerate_environment(const Environment& environment, ParseResult& result);

}  // namespace teratron
