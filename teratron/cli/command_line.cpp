#include "teratron/cli/command_line.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "teratron/base/error.h"
#include "teratron/base/spelling.h"

namespace teratron {

namespace {

// Underscores and hyphens are the same in the names of flags.
std::vector<std::string> normalised(std::span<const std::string> args) {
  std::vector<std::string> result;
  for (std::string arg : args) {
    if (arg.starts_with("--"))
      std::replace(arg.begin(), arg.begin() + std::min(arg.find('='), arg.size()), '_', '-');
    result.push_back(std::move(arg));
  }
  return result;
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// CLI11 would only say that a subcommand is required.
void check_subcommand(const CLI::App& app, std::span<const std::string> args) {
  const std::vector<std::string> names = subcommand_names(app);
  if (names.empty() || args.empty() || args[0].starts_with("-")) return;
  if (std::find(names.begin(), names.end(), args[0]) != names.end()) return;
  const std::string near = nearest_spelling(args[0], names);
  throw config_error({.what = fmt::format("'{}' is no subcommand", printable(args[0], 40)),
                      .where = app.get_name(),
                      .fix = near.empty() ? fmt::format("Use one of {}", fmt::join(names, ", "))
                                          : fmt::format("Did you mean {}?", near)});
}

// The flags of `app`, without dashes in front and with underscores between words.
std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (std::string name : option->get_lnames()) {
      std::replace(name.begin(), name.end(), '-', '_');
      names.push_back(name);
    }
  }
  return names;
}

// All flags that do not exist at once, each with what may have been meant; CLI11 names those that are missing first.
void check_flags(const CLI::App& app, const std::string& command, std::span<const std::string> args) {
  const std::vector<std::string> names = flag_names(app);
  std::vector<Problem> problems;
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (!arg.starts_with("--")) continue;
    const std::string flag = arg.substr(0, arg.find('='));
    std::string name = flag.substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::string near = nearest_spelling(name, names);
    std::replace(near.begin(), near.end(), '_', '-');
    problems.push_back({.what = "unknown flag " + printable(flag),
                        .where = command,
                        .fix = near.empty() ? fmt::format("See {} --help", command)
                                            : fmt::format("Did you mean --{}?", near)});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

bool parse_command(CLI::App& app, std::span<const std::string> written) {
  const std::vector<std::string> args = normalised(written);
  check_subcommand(app, args);
  const bool deeper = !args.empty() && !subcommand_names(app).empty() && !args[0].starts_with("-");
  const CLI::App& parsed = deeper ? *app.get_subcommand(args[0]) : app;
  const std::string command = deeper ? app.get_name() + " " + args[0] : app.get_name();
  if (!parsed.get_allow_extras()) check_flags(parsed, command, args);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them from the back
  } catch (const CLI::Success& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw config_error(
        {.what = error.what(), .where = command, .fix = fmt::format("See {} --help", command)});
  }
  return true;
}

}  // namespace teratron
