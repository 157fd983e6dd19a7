#include "teratron/base/config/command_line.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/config/help_view.h"
#include "teratron/base/config/spelling.h"
#include "teratron/base/config/wrap.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

Schema schema_of(std::span<const Field> fields) {
  return Schema({.fields = fields, .compat_flags = {}, .later_flags = {}});
}

// Wrapped as the rows of --help are.
std::string lines_of(std::string_view text) {
  std::string lines;
  for (const std::string& line : split(text, '\n')) lines += (lines.empty() ? "" : "\n") + wrap(line, 0, 100);
  return lines;
}

// Words behind the name of another command are that command's.
bool asks_for_all(const CommandLine& command, std::span<const std::string> args) {
  const auto is_word = [](const std::string& arg) { return arg == "--" || !arg.starts_with('-'); };
  const auto end =
      command.others == OtherArguments::command ? std::ranges::find_if(args, is_word) : args.end();
  return std::find(args.begin(), end, "--help-all") != end;
}

void require_fields(const CommandLine& command, ParseResult& result) {
  for (const Field& field : command.fields) {
    const auto is_of = [&](const Assignment& assignment) { return assignment.field == &field; };
    const bool invalid = std::ranges::find(result.unresolved, field.name) != result.unresolved.end();
    if (!field.traits.required || invalid || std::ranges::any_of(result.assignments, is_of)) continue;
    result.problems.push_back({.what = fmt::format("{} is required", flag_of(field.name)),
                               .where = std::string(command.name),
                               .fix = fmt::format("Give it: {}", field.help)});
  }
}

}  // namespace

std::vector<Field> joined(std::vector<Field> fields, std::span<const Field> more) {
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

std::string command_help(const CommandLine& command) {
  const std::string words = command.usage.empty() ? "" : fmt::format(" {}", command.usage);
  const std::string usage = fmt::format("{}{}\n\n{}\n", command.name, words, lines_of(command.summary));
  const std::string footer = command.footer.empty() ? "" : fmt::format("\n{}\n", lines_of(command.footer));
  const std::vector<Field> fields = joined(command.fields, command.collected);
  return help_text(schema_of(fields), {usage}, nullptr) + footer;
}

std::optional<std::vector<std::string>> read_command(const CommandLine& command,
                                                     std::span<const std::string> args) {
  const Schema schema = schema_of(command.fields);
  ParseResult result;
  const bool whole = asks_for_all(command, args);
  std::vector<std::string> others;
  if (!whole) others = read_arguments(schema, args, command.others, result);
  if (whole || result.help) {
    const HelpPage page{.command = std::string(command.name),
                        .full = command_help(command),
                        .main_flags = command.main_flags,
                        .example = command.example};
    print_line(help_view(page, args));
    return std::nullopt;
  }
  require_fields(command, result);
  for (Problem& problem : result.problems) {
    if (problem.what.starts_with("unknown flag") && !command.unknown_flag.empty())
      problem.fix += " " + command.unknown_flag;
  }
  if (!result.problems.empty()) throw UserError(ExitCode::config, std::move(result.problems));
  apply(result, nullptr);
  return others;
}

int run_subcommand(const SubcommandGroup& group, std::span<const Subcommand> subcommands,
                   std::span<const std::string> args) {
  const std::string_view command = group.command;
  std::vector<std::string> names;
  for (const Subcommand& each : subcommands) names.emplace_back(each.name);
  if (!args.empty() && is_help(args[0])) {
    teratron::print("usage: {} {} ARGUMENTS...\n", command, fmt::join(names, "|"));
    for (const Subcommand& each : subcommands) print("  {:<12}{}", each.name, each.summary);
    print("\nexample:\n  {}\n\n`{} {} --help` describes a subcommand.", group.example, command,
          names.front());
    return 0;
  }
  for (const Subcommand& each : subcommands) {
    if (!args.empty() && args[0] == each.name) return each.run(args.subspan(1));
  }
  const std::string near = args.empty() ? "" : nearest_spelling(args[0], names);
  throw config_error({.what = args.empty()
                                  ? "no subcommand is given"
                                  : fmt::format("'{}' is not a valid subcommand", printable(args[0], 40)),
                      .where = std::string(command),
                      .fix = near.empty() ? fmt::format("Use one of {}", fmt::join(names, ", "))
                                          : fmt::format("Did you mean {}?", near)});
}

}  // namespace teratron
