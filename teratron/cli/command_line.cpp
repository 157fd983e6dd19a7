#include "teratron/cli/command_line.h"

#include <CLI/CLI.hpp>

#include "teratron/base/error.h"

namespace teratron {

bool parse_command(CLI::App& app, std::span<const std::string> args) {
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them from the back
  } catch (const CLI::Success& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw config_error(
        {.what = error.what(), .where = app.get_name(), .fix = "See " + app.get_name() + " --help"});
  }
  return true;
}

}  // namespace teratron
