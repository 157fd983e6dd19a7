// `teratron config update`: an older configuration file with the keys it lacks.
#pragma once

#include <string>
#include <vector>

namespace teratron {

struct UpdatedConfig {
  std::string text;
  std::vector<std::string> added;  // keys
};

/// Appends missing top-level keys with their defaults; keeps the rest, comments included. `text`: contents of
/// the file `path`. UserError(config) with all problems of a file that cannot be read.
UpdatedConfig update_config(const std::string& text, const std::string& path);

}  // namespace teratron
