// The one list of the families.
#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/models/family.h"
#include "teratron/models/gpt/gpt_family.h"

namespace teratron {

std::span<const Family> families() {
  static const std::vector<Family> all = {gpt_family()};
  return all;
}

const Family& find_family(std::string_view name, std::span<const Family> more) {
  std::vector<std::string_view> names;
  for (const std::span<const Family> list : {more, families()}) {
    for (const Family& family : list) {
      if (family.name == name) return family;
      names.push_back(family.name);
    }
  }
  throw config_error(
      {.what = name.empty() ? std::string("no model given")
                            : fmt::format("'{}' is not a known model", printable(std::string(name), 40)),
       .where = "command",
       .fix = fmt::format("Use one of: {}", fmt::join(names, ", "))});
}

}  // namespace teratron
