// What the subcommands share in reading their flags.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace teratron {

/// Parses `args` into what was declared on `app`. False when help was asked for and printed: the command is done.
/// A wrong command line is UserError(config): unknown flags all at once, with what may have been meant. Underscores and
/// hyphens are the same in the flags of `app`.
bool parse_command(CLI::App& app, std::span<const std::string> args);

}  // namespace teratron
