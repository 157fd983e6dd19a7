#include "teratron/cli/command_line.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// CLI11 would only say that a subcommand is required.
void check_subcommand(CLI::App& app, std::span<const std::string> args) {
  const std::vector<CLI::App*> known = app.get_subcommands([](CLI::App*) { return true; });
  if (known.empty() || args.empty() || args[0].starts_with("-")) return;
  std::vector<std::string> names;
  for (const CLI::App* command : known) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), args[0]) != names.end()) return;
  throw config_error({.what = fmt::format("'{}' is no subcommand", printable(args[0], 40)),
                      .where = app.get_name(),
                      .fix = fmt::format("Use one of {}", fmt::join(names, ", "))});
}

}  // namespace

bool parse_command(CLI::App& app, std::span<const std::string> args) {
  check_subcommand(app, args);
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
