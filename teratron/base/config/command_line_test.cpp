#include "teratron/base/config/command_line.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

using Words = std::vector<std::string>;

struct Copy {
  std::vector<std::string> sources;
  std::string target;
  int64_t threads = 2;
  bool quiet = false, links = true;

  CommandLine line(OtherArguments others = OtherArguments::refused) {
    return {
        .name = "copy files",
        .usage = "SOURCE... --target FOLDER [FLAGS]",
        .summary = "Copy files.",
        .fields = {bound_field("sources", &sources, "Files", {.positional = true}),
                   bound_field("target", &target, "Folder to copy to", {.aliases = "--to", .required = true}),
                   bound_field("threads", &threads, "Number of threads", {.min = 1, .max = 8}),
                   bound_field("quiet", &quiet, "Print nothing"),
                   bound_field("links", &links, "Follow links",
                               {.off = "--no-links", .off_help = "Copy links as links"})},
        .others = others,
        .unknown_flag = "Really"};
  }
};

std::vector<Problem> problems_of(const CommandLine& line, const Words& args) {
  try {
    read_command(line, args);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.problems();
  }
  return {};
}

TEST(CommandLine, WritesToTheFields) {
  Copy copy;
  const Words args = {"a", "b", "--to", "c", "--threads=4", "d", "--no_links"};
  EXPECT_EQ(read_command(copy.line(), args), Words());
  EXPECT_EQ(copy.sources, (Words{"a", "b", "d"}));
  EXPECT_EQ(copy.target, "c");
  EXPECT_EQ(copy.threads, 4);
  EXPECT_FALSE(copy.quiet);
  EXPECT_FALSE(copy.links);
}

TEST(CommandLine, ReportsAllProblemsTogether) {
  Copy copy;
  const std::vector<Problem> problems = problems_of(copy.line(), {"--threads", "9", "--thread", "1"});
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(to_string(problems[0]), "--threads: threads = 9 is out of range. Use a value from 1 to 8.");
  EXPECT_EQ(to_string(problems[1]), "--thread: unknown flag --thread. Did you mean --threads? Really.");
  EXPECT_EQ(to_string(problems[2]), "copy files: --target is required. Give it: Folder to copy to.");
}

TEST(CommandLine, CollectsOtherArgumentsInTheirOrder) {
  Copy copy;
  const Words args = {"--lr", "1", "--to", "c", "--data-path", "x", "y", "--quiet", "--bf16"};
  CommandLine line = copy.line(OtherArguments::collected);
  line.fields.erase(line.fields.begin());
  EXPECT_EQ(read_command(line, args), (Words{"--lr", "1", "--data-path", "x", "y", "--bf16"}));
  EXPECT_TRUE(copy.quiet);
}

TEST(CommandLine, StopsAtACommand) {
  Copy copy;
  const CommandLine line = copy.line(OtherArguments::command);
  const Words command = {"run", "--quiet", "--help"}, dashes = {"--", "run", "--quiet"};
  for (const Words& rest : {command, dashes}) {
    Words args = {"--to", "c", "--threads", "3"};
    args.insert(args.end(), rest.begin(), rest.end());
    EXPECT_EQ(read_command(line, args), rest);
    EXPECT_FALSE(copy.quiet);
  }
}

TEST(CommandLine, HasTheHelpOfSettings) {
  Copy copy;
  EXPECT_EQ(command_help(copy.line()),
            "usage: copy files SOURCE... --target FOLDER [FLAGS]\n\nCopy files.\n\n"
            "  --sources TEXT...               Files (also without the flag)\n"
            "  --target, --to TEXT             Folder to copy to (required)\n"
            "  --threads N                     Number of threads [2]\n"
            "  --quiet                         Print nothing\n"
            "  --no-links                      Copy links as links\n");
}

TEST(CommandLine, RunsSubcommands) {
  Words seen;
  const Subcommand subcommands[] = {{"inspect", "look", [&](std::span<const std::string> args) {
                                       seen.assign(args.begin(), args.end());
                                       return 7;
                                     }}};
  EXPECT_EQ(run_subcommand({"data", "data inspect a"}, subcommands, Words{"inspect", "a", "--b"}), 7);
  EXPECT_EQ(seen, (Words{"a", "--b"}));
  try {
    run_subcommand({"data", "data inspect a"}, subcommands, Words{"inspct"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), "data: 'inspct' is not a valid subcommand. Did you mean inspect?");
  }
}

}  // namespace
}  // namespace teratron
