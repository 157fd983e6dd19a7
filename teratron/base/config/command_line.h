// The flags of a command: a table of fields, read and printed as settings are.
//
//   std::string path;
//   const CommandLine line = {.name = "teratron merge",
//                             .usage = "--output FILE",
//                             .summary = "Concatenate indexed datasets.",
//                             .fields = {bound_field("output", &path, "File", {.required = true})}};
//   if (!read_command(line, args)) return 0;  // --help was printed
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/config/flag_reader.h"

namespace teratron {

struct CommandLine {
  std::string_view name;
  std::string example = {};     // a command line
  std::string_view usage = {};  // what follows the name
  std::string_view summary = {};
  std::vector<Field> fields = {};  // bound_field
  OtherArguments others = OtherArguments::refused;
  std::vector<Field> collected = {};         // flags among the collected arguments, for --help
  std::string footer = {};                   // last lines of --help
  std::string unknown_flag = {};             // what else to say of an unknown flag
  std::vector<std::string> main_flags = {};  // of the short --help (help_view.h); none: all
};

std::vector<Field> joined(std::vector<Field> fields, std::span<const Field> more);

/// Writes the values to the fields. Returns the arguments that are not the command's; nullopt if --help was
/// printed. Throws UserError(config) with all problems.
std::optional<std::vector<std::string>> read_command(const CommandLine& command,
                                                     std::span<const std::string> args);
/// Text of --help-all.
std::string command_help(const CommandLine& command);

struct Subcommand {
  std::string_view name;
  std::string_view summary;
  std::function<int(std::span<const std::string>)> run;
};

struct SubcommandGroup {
  std::string_view command;  // "teratron data"
  std::string_view example;
};

/// Runs the one that args[0] names with the other arguments, or prints --help. UserError(config) if there is
/// none.
int run_subcommand(const SubcommandGroup& group, std::span<const Subcommand> subcommands,
                   std::span<const std::string> args);

}  // namespace teratron
