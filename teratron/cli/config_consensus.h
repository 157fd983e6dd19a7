// Agreement of all ranks on their settings, checked before anything else: ranks started with different
// command lines, files or program versions would silently train something unintended.
#pragma once

#include <optional>
#include <string>

#include "teratron/base/error.h"
#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// The settings of one rank as a JSON object, or the error in them.
struct RankConfig {
  std::string settings = {};
  std::string version = {};  // of the program
  /// --load names another folder than --save (settings/own_run.h).
  bool loads_elsewhere = false;
  std::optional<UserError> error = {};
};

/// Compares with all ranks; returns ok if all configs are equal and without error. Otherwise rank 0 throws
/// UserError naming ranks and settings, and the other ranks get its exit code, to leave with. Settings that
/// may differ between machines (threads, workers, the cache folder) are ignored; so are the names of --save
/// and --load, but not whether they are given, and are one folder.
ExitCode check_config_consensus(const RankConfig& mine, HostGroup& group);

}  // namespace teratron
