#include "teratron/base/config/command_line.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "teratron/base/config/spelling.h"
#include "teratron/base/error.h"

namespace teratron {

namespace {

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// CLI11 reports only that a subcommand is required.
void check_subcommand(const CLI::App& app, std::span<const std::string> args) {
  const std::vector<std::string> names = subcommand_names(app);
  if (names.empty() || args.empty() || args[0].starts_with("-")) return;
  if (std::find(names.begin(), names.end(), args[0]) != names.end()) return;
  const std::string near = nearest_spelling(args[0], names);
  throw config_error({.what = fmt::format("'{}' is not a valid subcommand", printable(args[0], 40)),
                      .where = app.get_name(),
                      .fix = near.empty() ? fmt::format("Use one of {}", fmt::join(names, ", "))
                                          : fmt::format("Did you mean {}?", near)});
}

// "--max_bad=3" -> "max-bad"; empty if not a flag.
std::string flag_name(const std::string& arg) {
  if (!arg.starts_with("--")) return "";
  std::string name = arg.substr(2, arg.find('=') - 2);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

// Replaces underscores in the names of known flags; arguments passed through are unchanged.
std::vector<std::string> normalized(std::span<const std::string> args,
                                    const std::vector<std::string>& flags) {
  std::vector<std::string> result(args.begin(), args.end());
  for (std::string& arg : result) {
    if (arg == "--") break;
    const std::string name = flag_name(arg);
    if (std::find(flags.begin(), flags.end(), name) != flags.end()) arg.replace(2, name.size(), name);
  }
  return result;
}

// nearest_spelling() expects words separated by underscores.
std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Reports all unknown flags with suggestions (CLI11 reports missing flags first). A launcher is easily passed
// flags of the launched command.
void check_flags(const std::vector<std::string>& flags, const std::string& command,
                 std::span<const std::string> args, bool is_launcher) {
  std::vector<std::string> names;
  for (const std::string& flag : flags) names.push_back(underscored(flag));
  std::vector<Problem> problems;
  for (const std::string& arg : args) {
    if (arg == "--") break;
    const std::string name = flag_name(arg);
    if (name.empty() || std::find(flags.begin(), flags.end(), name) != flags.end()) continue;
    std::string near = nearest_spelling(underscored(name), names);
    std::replace(near.begin(), near.end(), '_', '-');
    std::string fix =
        near.empty() ? fmt::format("See {} --help", command) : fmt::format("Did you mean --{}?", near);
    if (is_launcher)
      fix += fmt::format("{} Flags of the launched command follow its name", near.empty() ? "." : "");
    problems.push_back({.what = "unknown flag " + printable(arg.substr(0, arg.find('='))),
                        .where = command,
                        .fix = std::move(fix)});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

bool parse_command(CLI::App& app, std::span<const std::string> written) {
  check_subcommand(app, written);
  const bool deeper = !written.empty() && !subcommand_names(app).empty() && !written[0].starts_with("-");
  const CLI::App& parsed = deeper ? *app.get_subcommand(written[0]) : app;
  const std::string command = deeper ? app.get_name() + " " + written[0] : app.get_name();
  const std::vector<std::string> flags = flag_names(parsed);
  const std::vector<std::string> args = normalized(written, flags);
  if (!parsed.get_allow_extras() && !parsed.get_prefix_command()) check_flags(flags, command, args, false);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 consumes them from the back
  } catch (const CLI::Success& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw config_error(
        {.what = error.what(), .where = command, .fix = fmt::format("See {} --help", command)});
  }
  const std::vector<std::string> rest = parsed.remaining();
  if (parsed.get_prefix_command() && !rest.empty())
    check_flags(flags, command, std::span(rest).first(1), true);
  return true;
}

}  // namespace teratron
