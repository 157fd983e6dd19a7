// A flags.def that a family brings: its rows are flags like those of the program, of this family alone.
// Settings are compiled with it once more, since each row is a member of Arguments.
#include <gtest/gtest.h>

#include "teratron/settings/arguments.h"

namespace teratron {
namespace {

const Program toy = {.names = {"toy", "training"}}, gpt = {.names = {"gpt", "training"}};

std::string help_of(const Program& program) {
  return arguments_help({"usage", program.names});
}

std::string problems_of(const std::vector<std::string>& args) {
  try {
    parse_arguments(toy, args);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(OwnFlags, AreListedInTheHelpOfTheirFamily) {
  const std::string help = help_of(toy);
  EXPECT_NE(help.find("\nToy\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --toy-step "), std::string::npos) << help;
  EXPECT_NE(help.find("Distance between two numbers of a toy"), std::string::npos) << help;
  EXPECT_NE(help.find("  --toy-backwards"), std::string::npos) << help;
  EXPECT_NE(help.find("  --num-layers "), std::string::npos) << help;
  EXPECT_EQ(help.find("  --scale-embeddings"), std::string::npos) << help;
  EXPECT_EQ(help_of(gpt).find("--toy"), std::string::npos);
}

TEST(OwnFlags, AreParsedAndChecked) {
  const std::vector<std::string> flags = {"--toy-step", "3", "--toy-backwards", "--num-layers", "2"};
  const ParsedArguments parsed = parse_arguments(toy, flags);
  EXPECT_EQ(parsed.args.toy_step, 3);
  EXPECT_TRUE(parsed.args.toy_backwards);
  EXPECT_EQ(parsed.args.num_layers, 2);
  EXPECT_EQ(parsed.sources.at("toy_step"), "--toy-step");
  EXPECT_TRUE(parsed.notices.empty());
  EXPECT_EQ(parse_arguments(toy, {}).args.toy_step, 1);
  EXPECT_NE(problems_of({"--toy-step", "10"}).find("toy_step"), std::string::npos);
  EXPECT_NE(problems_of({"--toy-steps", "2"}).find("--toy-step"), std::string::npos);
}

TEST(OwnFlags, HaveNoEffectOnOtherFamilies) {
  const std::vector<std::string> flags = {"--toy-step", "3"};
  EXPECT_EQ(parse_arguments(gpt, flags).notices, std::vector<std::string>{"--toy-step has no effect on gpt"});
}

TEST(OwnFlags, AreSavedWithTheModel) {
  Arguments args;
  args.toy_step = 7;
  EXPECT_EQ(arguments_from_json(to_json(args), "here").toy_step, 7);
  EXPECT_TRUE(arguments_schema().field("toy_step").model);
}

}  // namespace
}  // namespace teratron
