// Command-line parsing for subcommands.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace teratron {

/// Parses `args` into the options declared on `app`. Returns false if help was printed. Throws
/// UserError(config), which reports all unknown flags together with suggestions. Hyphens and underscores are
/// interchangeable in flag names.
bool parse_command(CLI::App& app, std::span<const std::string> args);

}  // namespace teratron
