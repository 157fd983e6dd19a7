// Changes of texts that methods and filters share.
#pragma once

#include <string>
#include <string_view>

#include "teratron/tokenizer/jinja/values/python_text.h"
#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

struct Replacement {
  std::string_view old, with;
  int64_t most = -1;  // negative: all
};
/// str.replace()
std::string replaced(Workspace& workspace, std::string_view text, const Replacement& replacement);

struct Filling {
  int64_t width;
  std::string_view filler;
  Ends filled;  // where fillers are added
};
/// str.ljust(), rjust(), center()
std::string filled_text(Workspace& workspace, std::string_view text, const Filling& filling);

/// str.title(): words begin in upper case.
std::string titled(Workspace& workspace, std::string_view text);

}  // namespace teratron::jinja
