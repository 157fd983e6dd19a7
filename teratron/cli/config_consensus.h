// Ranks that were started with different command lines, files or programs would train something that nobody
// asked for: they compare what they were told before anything else happens.
#pragma once

#include <optional>
#include <string>

#include "teratron/base/error.h"
#include "teratron/comm/host/host_group.h"

namespace teratron {

/// What one rank was told: its settings as a JSON object, or why it refuses them.
struct Instructions {
  std::string settings = {};
  std::string version = {};  // of the program
  std::optional<UserError> error = {};
};

/// Compares with all ranks. True: all were told the same, and nobody refuses. Otherwise rank 0 throws the
/// UserError (config) that names ranks and settings, and the others get false and are to leave with its exit
/// code. Settings that may differ from machine to machine (threads, workers, a folder for caches) do not count.
struct Agreement {
  bool agreed = true;
  ExitCode code = ExitCode::ok;
};
Agreement agree_on(const Instructions& mine, Peers& peers);

}  // namespace teratron
