#include "teratron/train/config_file.h"

namespace teratron {

void read_config_file(const std::string& path, const std::string& where, Settings& settings) {
  settings.problems.push_back(
      {.what = fmt::format("{}: configuration files cannot be read yet", printable(path)),
       .where = where,
       .fix = "Give flags"});
}

}  // namespace teratron
