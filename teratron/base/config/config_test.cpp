// The engine on a small table. The program's table is tested in settings/arguments_test.cpp.
#include "teratron/base/config/config.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace teratron {
namespace {

struct Sample {
  bool flag = false;
  bool kept = true;
  int64_t layers = 2;
  double rate = 0.1;
  double share = 0.5;
  std::string kind = "one";
  std::optional<int64_t> maybe;
  std::vector<int64_t> numbers;
  std::vector<std::string> paths;
  std::vector<double> rates = {0.5};
  std::vector<std::string> kinds;
  std::optional<std::string> soon;
};

const Field fields[] = {
    {.name = "flag", .type = FieldType::boolean, .offset = offsetof(Sample, flag), .help = "A switch"},
    {.name = "kept",
     .type = FieldType::boolean,
     .offset = offsetof(Sample, kept),
     .traits = {.off = "--drop"}},
    {.name = "layers",
     .type = FieldType::integer,
     .offset = offsetof(Sample, layers),
     .traits = {.min = 1, .max = 100, .aliases = "--num-layers -l"}},
    {.name = "share",
     .type = FieldType::real,
     .offset = offsetof(Sample, share),
     .traits = {.min = 0, .below = 1}},
    {.name = "rate", .type = FieldType::real, .offset = offsetof(Sample, rate), .traits = {.min = 0}},
    {.name = "kind",
     .type = FieldType::string,
     .offset = offsetof(Sample, kind),
     .traits = {.choices = "one|two|three", .choice_aliases = "uno=one due=two", .planned_choices = "three"}},
    {.name = "maybe", .type = FieldType::opt_integer, .offset = offsetof(Sample, maybe)},
    {.name = "numbers",
     .type = FieldType::integers,
     .offset = offsetof(Sample, numbers),
     .traits = {.program = "other", .count = 3}},
    {.name = "paths",
     .type = FieldType::strings,
     .status = FieldStatus::no_op,
     .offset = offsetof(Sample, paths),
     .traits = {.note = "paths are always used"}},
    {.name = "rates", .type = FieldType::reals, .offset = offsetof(Sample, rates), .traits = {.min = 0}},
    {.name = "kinds",
     .type = FieldType::strings,
     .offset = offsetof(Sample, kinds),
     .traits = {.choices = "one|two", .choice_aliases = "uno=one"}},
    {.name = "soon",
     .type = FieldType::opt_string,
     .status = FieldStatus::planned,
     .offset = offsetof(Sample, soon)},
};
const CompatFlag compat_flags[] = {
    {"--ancient", 1, CompatFlag::Verdict::alias, "v1", "layers=$1 kind=two"},
    {"--no-fuss", 0, CompatFlag::Verdict::no_op, "v1", "nothing is fused"},
    {"--gone", 1, CompatFlag::Verdict::refused, "v1", "it was removed"},
};

const Schema& schema() {
  static const Schema table(
      {.fields = fields, .compat_flags = compat_flags, .later_flags = "future_flag other_future"});
  return table;
}

struct Parsed {
  Sample object;
  ParseResult result;
  Sources sources;
};

Parsed read(std::vector<std::string> args) {
  Parsed parsed;
  read_flags(schema(), args, parsed.result);
  const Sample defaults;
  review(schema(), &defaults, {.program = {"this"}}, parsed.result);
  parsed.sources = apply(parsed.result, &parsed.object);
  return parsed;
}

TEST(Config, ReadsEveryTypeAndSpelling) {
  const Parsed r =
      read({"--flag", "--drop", "--num_layers=7", "--rate", "1e-2", "--kind", "due", "--maybe", "1_000"});
  EXPECT_TRUE(r.result.problems.empty());
  EXPECT_TRUE(r.object.flag);
  EXPECT_FALSE(r.object.kept);
  EXPECT_EQ(r.object.layers, 7);
  EXPECT_EQ(r.object.rate, 0.01);
  EXPECT_EQ(r.object.kind, "two");
  EXPECT_EQ(r.object.maybe, 1000);
  EXPECT_EQ(r.sources.at("layers"), "--num_layers");
}

TEST(Config, LastValueWinsAndNegativeNumbersAreValues) {
  const Parsed r =
      read({"--layers", "3", "--maybe", "-5", "--flag", "--flag=false", "--layers", "4", "--rate", ".5"});
  EXPECT_TRUE(r.result.problems.empty());
  EXPECT_EQ(r.object.layers, 4);
  EXPECT_EQ(r.object.maybe, -5);
  EXPECT_EQ(r.object.rate, 0.5);
  EXPECT_FALSE(r.object.flag);
}

TEST(Config, AliasesSetFields) {
  const Parsed r = read({"--ancient", "9", "--no-fuss"});
  EXPECT_EQ(r.object.layers, 9);
  EXPECT_EQ(r.object.kind, "two");
  ASSERT_EQ(r.result.notices.size(), 2u);
  EXPECT_EQ(r.result.notices[0], "--ancient is an old spelling of --layers=9 --kind=two");
  EXPECT_EQ(r.result.notices[1], "--no-fuss has no effect: nothing is fused");
}

struct BadFlags {
  std::vector<std::string> args;
  const char* where;
  const char* what;
  const char* fix;
};

class BadFlagsTest : public testing::TestWithParam<BadFlags> {};

TEST_P(BadFlagsTest, IsOneProblem) {
  const Parsed r = read(GetParam().args);
  ASSERT_EQ(r.result.problems.size(), 1u) << UserError(ExitCode::config, r.result.problems).what();
  const Problem& problem = r.result.problems[0];
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
        BadFlags{{"--layers", "x"}, "--layers", "'x' is not a whole number", ""},
        BadFlags{{"--layers", "3.5"}, "--layers", "not a whole number", ""},
        BadFlags{{"--layers", ""}, "--layers", "not a whole number", ""},
        BadFlags{{"--layers", "99999999999999999999"}, "--layers", "not a whole number", ""},
        BadFlags{{"--layers", "0"}, "--layers", "out of range", "from 1 to 100"},
        BadFlags{{"--layers", "101"}, "--layers", "out of range", "from 1 to 100"},
        BadFlags{{"--rate", "-1"}, "--rate", "out of range", "at least 0"},
        BadFlags{{"--share", "1"}, "--share", "out of range", "from 0 to below 1"},
        BadFlags{{"--rate", "nan"}, "--rate", "out of range", ""},
        BadFlags{{"--rate", "inf"}, "--rate", "out of range", ""},
        BadFlags{{"--rate", "fast"}, "--rate", "not a number", ""},
        BadFlags{{"--flag=maybe"}, "--flag", "neither true nor false", ""},
        BadFlags{{"--kind", "four"}, "--kind", "not a valid choice", "one, two, three"},
        BadFlags{{"--kind", "one|two"}, "--kind", "not a valid choice", ""},
        BadFlags{{"--kind", "three"}, "--kind", "kind = three is not supported yet", "Use one of one, two"},
        BadFlags{{"--soon", "x"}, "--soon", "not supported yet", "Leave it out"},
        BadFlags{{"--numbers", "1", "2"}, "--numbers", "needs 3 values, not 2", ""},
        BadFlags{{"--numbers", "1", "2", "c"}, "--numbers", "'c' is not a whole number", ""},
        BadFlags{{"--rates", "1", "x"}, "--rates", "'x' is not a number", ""},
        BadFlags{{"--rates", "1", "-2"}, "--rates", "-2 is out of range", ""},
        BadFlags{{"--kinds", "one", "three"}, "--kinds", "'three' is not a valid choice", "one, two"},
        BadFlags{{"--kind="}, "--kind", "kind is empty", ""},
        BadFlags{{"--no-fuss=perhaps"}, "--no-fuss", "neither true nor false", ""},
        BadFlags{{"--gone", "1"}, "--gone", "it was removed", "Remove"},
        BadFlags{{"--ancient"}, "--ancient", "needs one value", ""},
        BadFlags{{"--future-flag", "a", "b"}, "--future-flag", "later Megatron-LM version", "Remove"},
        BadFlags{{"stray"}, "command line", "unexpected argument 'stray'", ""},
        BadFlags{{"--flag", "true"}, "after --flag", "unexpected argument 'true'", "--name=true"},
        BadFlags{{"-x"}, "-x", "unknown flag", ""}));

TEST(Config, CollectsAllProblems) {
  const Parsed r = read({"--layers", "0", "--bogus-bogus", "--rate", "x", "--kind", "nine"});
  EXPECT_EQ(r.result.problems.size(), 4u);
}

TEST(Config, NoOpsAndFieldsOfOtherProgramsGiveNotices) {
  const Parsed r = read({"--paths", "a", "b", "--numbers", "1", "2", "3"});
  EXPECT_TRUE(r.result.problems.empty());
  ASSERT_EQ(r.result.notices.size(), 2u);
  EXPECT_EQ(r.result.notices[0], "--numbers has no effect on this");
  EXPECT_EQ(r.result.notices[1], "--paths has no effect: paths are always used");
  EXPECT_EQ(r.object.paths, (std::vector<std::string>{"a", "b"}));
}

TEST(Config, CompatSwitchesCanBeOff) {
  const Parsed r = read({"--no-fuss=false", "--no-fuss=No"});
  EXPECT_TRUE(r.result.problems.empty());
  EXPECT_TRUE(r.result.notices.empty());
}

TEST(Config, PlannedFieldsAcceptTheirDefault) {
  EXPECT_TRUE(read({"--kind", "one"}).result.problems.empty());
}

TEST(Config, DumpHasMegatronsFormat) {
  Sample object;
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

TEST(Config, PythonStrOfFloats) {
  EXPECT_EQ(python_str(1.0), "1.0");
  EXPECT_EQ(python_str(4294967296.0), "4294967296.0");
  EXPECT_EQ(python_str(0.00015), "0.00015");
  EXPECT_EQ(python_str(1e-5), "1e-05");
  EXPECT_EQ(python_str(1e16), "1e+16");
  EXPECT_EQ(python_str(-0.5), "-0.5");
}

TEST(Config, JsonRoundTrip) {
  Sample object;
  object.flag = true;
  object.layers = 12;
  object.rate = 0.1 + 0.2;
  object.kind = "two";
  object.numbers = {1, 2, 3};
  object.rates = {1e-2, 1.0};
  object.paths = {"x\n\"y\"", "\xc3\xa4"};
  const std::string text = to_json(schema(), &object);
  Sample back;
  EXPECT_TRUE(from_json(schema(), text, "args.json", &back).empty());
  EXPECT_EQ(to_json(schema(), &back), text);
  EXPECT_EQ(back.rate, object.rate);
  EXPECT_EQ(back.paths, object.paths);
  EXPECT_EQ(back.rates, object.rates);
}

TEST(Config, JsonOfAnotherVersion) {
  Sample object;
  EXPECT_EQ(from_json(schema(), R"({"layers": 5, "new_thing": {"a": 1}})", "f", &object),
            std::vector<std::string>{"new_thing"});
  EXPECT_EQ(object.layers, 5);
}

class BadJsonTest : public testing::TestWithParam<const char*> {};

TEST_P(BadJsonTest, IsACheckpointError) {
  Sample object;
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
