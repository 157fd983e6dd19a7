// `teratron config update`: an older configuration file with the keys it lacks.
#pragma once

#include <string>
#include <vector>

namespace teratron {

struct UpdatedConfig {
  std::string text;
  std::vector<std::string> added;  // keys
};

/// `text` of the file `path` followed by the top-level keys that it lacks, with the values that their absence
/// means; what it has, comments and other keys included, stays as it is. UserError(config) with all problems
/// of a file that cannot be read.
UpdatedConfig update_config(const std::string& text, const std::string& path);

}  // namespace teratron
