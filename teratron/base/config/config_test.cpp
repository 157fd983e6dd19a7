// The machinery alone, on a small table; the program's own table is tested in train/arguments_test.
#include "teratron/base/config/config.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace teratron {
namespace {

struct Settings6 {
  bool flag = false;
  bool kept = true;
  int64_t layers = 2;
  double rate = 0.1;
  std::string kind = "one";
  std::optional<int64_t> maybe;
  std::vector<int64_t> numbers;
  std::vector<std::string> paths;
  std::optional<std::string> soon;
};

const Field fields[] = {
    {.name = "flag", .type = FieldType::boolean, .offset = offsetof(Settings6, flag), .help = "A switch"},
    {.name = "kept",
     .type = FieldType::boolean,
     .offset = offsetof(Settings6, kept),
     .traits = {.off = "--drop"}},
    {.name = "layers",
     .type = FieldType::integer,
     .offset = offsetof(Settings6, layers),
     .traits = {.min = 1, .max = 100, .flags = "--num-layers -l"}},
    {.name = "rate", .type = FieldType::real, .offset = offsetof(Settings6, rate), .traits = {.min = 0}},
    {.name = "kind",
     .type = FieldType::text,
     .offset = offsetof(Settings6, kind),
     .traits = {.choices = "one|two|three", .choice_aliases = "uno=one due=two", .planned_choices = "three"}},
    {.name = "maybe", .type = FieldType::maybe_integer, .offset = offsetof(Settings6, maybe)},
    {.name = "numbers",
     .type = FieldType::integers,
     .offset = offsetof(Settings6, numbers),
     .traits = {.program = "other", .count = 3}},
    {.name = "paths",
     .type = FieldType::texts,
     .status = FieldStatus::inherent,
     .offset = offsetof(Settings6, paths),
     .traits = {.note = "paths are always so"}},
    {.name = "soon",
     .type = FieldType::maybe_text,
     .status = FieldStatus::planned,
     .offset = offsetof(Settings6, soon)},
};
const OldFlag old_flags[] = {
    {"--ancient", 1, OldFlag::Verdict::means, "v1", "layers=$1 kind=two"},
    {"--no-fuss", 0, OldFlag::Verdict::inherent, "v1", "there is no fuss"},
    {"--gone", 1, OldFlag::Verdict::rejected, "v1", "it went away"},
};

const Schema& schema() {
  static const Schema table(
      {.fields = fields, .old_flags = old_flags, .later_flags = "future_flag other_future"});
  return table;
}

struct Result {
  Settings6 object;
  Settings settings;
  Sources sources;
};

Result read(std::vector<std::string> args) {
  Result result;
  read_flags(schema(), args, result.settings);
  const Settings6 defaults;
  review(schema(), &defaults, {.program = "this"}, result.settings);
  result.sources = apply(result.settings, &result.object);
  return result;
}

TEST(Config, ReadsEveryTypeAndSpelling) {
  const Result r =
      read({"--flag", "--drop", "--num_layers=7", "--rate", "1e-2", "--kind", "due", "--maybe", "1_000"});
  EXPECT_TRUE(r.settings.problems.empty());
  EXPECT_TRUE(r.object.flag);
  EXPECT_FALSE(r.object.kept);
  EXPECT_EQ(r.object.layers, 7);
  EXPECT_EQ(r.object.rate, 0.01);
  EXPECT_EQ(r.object.kind, "two");
  EXPECT_EQ(r.object.maybe, 1000);
  EXPECT_EQ(r.sources.at("layers"), "--num_layers");
}

TEST(Config, LastOneWinsAndNegativeNumbersAreValues) {
  const Result r =
      read({"--layers", "3", "--maybe", "-5", "--flag", "--flag=false", "--layers", "4", "--rate", ".5"});
  EXPECT_TRUE(r.settings.problems.empty());
  EXPECT_EQ(r.object.layers, 4);
  EXPECT_EQ(r.object.maybe, -5);
  EXPECT_EQ(r.object.rate, 0.5);
  EXPECT_FALSE(r.object.flag);
}

TEST(Config, OldSpellingsMeanFields) {
  const Result r = read({"--ancient", "9", "--no-fuss"});
  EXPECT_EQ(r.object.layers, 9);
  EXPECT_EQ(r.object.kind, "two");
  ASSERT_EQ(r.settings.notices.size(), 2u);
  EXPECT_EQ(r.settings.notices[0], "--ancient is an old spelling and means --layers=9 --kind=two");
  EXPECT_EQ(r.settings.notices[1], "--no-fuss has no effect: there is no fuss");
}

struct BadFlags {
  std::vector<std::string> args;
  const char* where;
  const char* what;
  const char* fix;
};

class BadFlagsTest : public testing::TestWithParam<BadFlags> {};

TEST_P(BadFlagsTest, IsOneProblem) {
  const Result r = read(GetParam().args);
  ASSERT_EQ(r.settings.problems.size(), 1u) << UserError(ExitCode::config, r.settings.problems).what();
  const Problem& problem = r.settings.problems[0];
  EXPECT_EQ(problem.where, GetParam().where);
  EXPECT_NE(problem.what.find(GetParam().what), std::string::npos) << problem.what;
  EXPECT_NE(problem.fix.find(GetParam().fix), std::string::npos) << problem.fix;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFlagsTest,
    testing::Values(
        BadFlags{{"--layer", "3"}, "--layer", "unknown flag", "Did you mean --layers?"},
        BadFlags{{"--knid=two"}, "--knid", "unknown flag", "--kind"},
        BadFlags{{"--zzzzzzzzzzzz"}, "--zzzzzzzzzzzz", "unknown flag", "--help"},
        BadFlags{{"--layers"}, "--layers", "needs a value", ""},
        BadFlags{{"--layers", "--flag"}, "--layers", "needs a value", ""},
        BadFlags{{"--layers", "x"}, "--layers", "'x' is not an integer", ""},
        BadFlags{{"--layers", "3.5"}, "--layers", "not an integer", ""},
        BadFlags{{"--layers", ""}, "--layers", "not an integer", ""},
        BadFlags{{"--layers", "99999999999999999999"}, "--layers", "not an integer", ""},
        BadFlags{{"--layers", "0"}, "--layers", "out of range", "from 1 to 100"},
        BadFlags{{"--layers", "101"}, "--layers", "out of range", "from 1 to 100"},
        BadFlags{{"--rate", "-1"}, "--rate", "out of range", "at least 0"},
        BadFlags{{"--rate", "nan"}, "--rate", "out of range", ""},
        BadFlags{{"--rate", "inf"}, "--rate", "out of range", ""},
        BadFlags{{"--rate", "fast"}, "--rate", "not a number", ""},
        BadFlags{{"--flag=maybe"}, "--flag", "neither true nor false", ""},
        BadFlags{{"--kind", "four"}, "--kind", "not a valid choice", "one, two, three"},
        BadFlags{{"--kind", "one|two"}, "--kind", "not a valid choice", ""},
        BadFlags{{"--kind", "three"}, "--kind", "kind = three is not supported yet", "Use one of one, two"},
        BadFlags{{"--soon", "x"}, "--soon", "not supported yet", "Leave it out"},
        BadFlags{{"--numbers", "1", "2"}, "--numbers", "needs 3 values, not 2", ""},
        BadFlags{{"--numbers", "1", "2", "c"}, "--numbers", "'c' is not an integer", ""},
        BadFlags{{"--kind="}, "--kind", "kind is empty", ""},
        BadFlags{{"--no-fuss=perhaps"}, "--no-fuss", "neither true nor false", ""},
        BadFlags{{"--gone", "1"}, "--gone", "it went away", "Remove"},
        BadFlags{{"--ancient"}, "--ancient", "needs one value", ""},
        BadFlags{{"--future-flag", "a", "b"}, "--future-flag", "later Megatron-LM version", "Remove"},
        BadFlags{{"stray"}, "command line", "unexpected argument 'stray'", ""},
        BadFlags{{"--flag", "true"}, "after --flag", "unexpected argument 'true'", "--name=true"},
        BadFlags{{"-x"}, "-x", "unknown flag", ""}));

TEST(Config, CollectsAllProblems) {
  const Result r = read({"--layers", "0", "--bogus-bogus", "--rate", "x", "--kind", "nine"});
  EXPECT_EQ(r.settings.problems.size(), 4u);
}

TEST(Config, NoticesOfInherentAndForeignFields) {
  const Result r = read({"--paths", "a", "b", "--numbers", "1", "2", "3"});
  EXPECT_TRUE(r.settings.problems.empty());
  ASSERT_EQ(r.settings.notices.size(), 2u);
  EXPECT_EQ(r.settings.notices[0], "--numbers has no effect on this");
  EXPECT_EQ(r.settings.notices[1], "--paths has no effect: paths are always so");
  EXPECT_EQ(r.object.paths, (std::vector<std::string>{"a", "b"}));
}

TEST(Config, SwitchesThatAreNoFieldsCanBeOff) {
  const Result r = read({"--no-fuss=false", "--no-fuss=No"});
  EXPECT_TRUE(r.settings.problems.empty());
  EXPECT_TRUE(r.settings.notices.empty());
}

TEST(Config, PlannedFieldsMayNameTheirDefault) {
  EXPECT_TRUE(read({"--kind", "one"}).settings.problems.empty());
}

TEST(Config, DumpHasMegatronsForm) {
  Settings6 object;
  object.paths = {"a", "b"};
  object.rate = 1e-5;
  const std::string text = dump(schema(), &object);
  EXPECT_EQ(text.substr(0, text.find('\n')), "------------------------ arguments ------------------------");
  EXPECT_NE(text.find("\n  flag ............................................ False\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\n  layers .......................................... 2\n"), std::string::npos);
  EXPECT_NE(text.find(" 1e-05\n"), std::string::npos);
  EXPECT_NE(text.find(" ['a', 'b']\n"), std::string::npos);
  EXPECT_NE(text.find(" None\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("-------------------- end of arguments ---------------------"));
}

TEST(Config, PythonTextOfReals) {
  EXPECT_EQ(python_text(1.0), "1.0");
  EXPECT_EQ(python_text(4294967296.0), "4294967296.0");
  EXPECT_EQ(python_text(0.00015), "0.00015");
  EXPECT_EQ(python_text(1e-5), "1e-05");
  EXPECT_EQ(python_text(1e16), "1e+16");
  EXPECT_EQ(python_text(-0.5), "-0.5");
}

TEST(Config, JsonRoundTrip) {
  Settings6 object;
  object.flag = true;
  object.layers = 12;
  object.rate = 0.1 + 0.2;
  object.kind = "two";
  object.numbers = {1, 2, 3};
  object.paths = {"x\n\"y\"", "\xc3\xa4"};
  const std::string text = to_json(schema(), &object);
  Settings6 back;
  EXPECT_TRUE(from_json(schema(), text, "args.json", &back).empty());
  EXPECT_EQ(to_json(schema(), &back), text);
  EXPECT_EQ(back.rate, object.rate);
  EXPECT_EQ(back.paths, object.paths);
}

TEST(Config, JsonFromAnotherVersion) {
  Settings6 object;
  EXPECT_EQ(from_json(schema(), R"({"layers": 5, "new_thing": {"a": 1}})", "f", &object),
            std::vector<std::string>{"new_thing"});
  EXPECT_EQ(object.layers, 5);
}

class BadJsonTest : public testing::TestWithParam<const char*> {};

TEST_P(BadJsonTest, IsACheckpointError) {
  Settings6 object;
  try {
    from_json(schema(), GetParam(), "args.json", &object);
    FAIL() << "accepted " << GetParam();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    EXPECT_NE(error.problems().at(0).where.find("args.json"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BadJsonTest,
                         testing::Values("", "[]", "{", R"({"layers": "5"})", R"({"layers": 5.5})",
                                         R"({"layers": 0})", R"({"layers": null})", R"({"flag": 1})",
                                         R"({"kind": "nine"})", R"({"paths": "a"})", R"({"paths": [[1]]})",
                                         R"({"numbers": [1, 2]})", R"({"layers": 18446744073709551615})",
                                         R"({"layers": 1, "layers": 2})",
                                         R"({"maybe": {"a": {"b": {"c": {"d": 1}}}}})"));

}  // namespace
}  // namespace teratron
