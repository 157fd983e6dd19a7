// --help of all commands in one style: usage, summary, the flags that matter, an example, and where the rest
// is. At most 60 lines.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Whether the arguments ask for help: -h, --help or --help-all.
bool asks_for_help(std::span<const std::string> args);

struct HelpPage {
  std::string command;                       // "teratron pretrain gpt"
  std::string full;                          // of help_text(): usage and summary, sections of flags, remarks
  std::vector<std::string> main_flags = {};  // of the short page, those that are in `full`; none: all
  std::string example = {};                  // a command line; lines of it are indented alike
};

/// The part that the arguments ask for: --help, --help-all, --help SECTION, --help --flag or --help WORD.
/// UserError(config) with near names where nothing is found.
std::string help_view(const HelpPage& page, std::span<const std::string> args);

}  // namespace teratron
