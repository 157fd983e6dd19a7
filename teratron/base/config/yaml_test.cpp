#include "teratron/base/config/yaml.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/file.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

struct ParsedYaml {
  std::vector<YamlEntry> entries;
  std::vector<Problem> problems;
};

ParsedYaml parse(const std::string& text) {
  ParsedYaml out;
  out.entries = parse_yaml({.text = text, .name = "f.yaml"}, out.problems).entries;
  return out;
}

// Found by tests/fuzz: yaml-cpp reads empty documents without end.
TEST(Yaml, EndsOnZeroBytes) {
  using namespace std::string_literals;
  const ParsedYaml p = parse(" &\0\0\0\0\0\0\0\0\0ten'orb\xb5,\xb5|\n  text\n"s);
  ASSERT_EQ(p.problems.size(), 1u);
  EXPECT_NE(p.problems[0].what.find("more than one document"), std::string::npos) << p.problems[0].what;
  EXPECT_TRUE(p.entries.empty());
}

TEST(Yaml, FlattensSectionsWithPositions) {
  const ParsedYaml p = parse("a: 1\nb:\n  c: [x, y]\n  d:\n    e: ~\nf:\n");
  ASSERT_TRUE(p.problems.empty());
  ASSERT_EQ(p.entries.size(), 4u);
  EXPECT_EQ(p.entries[0].where, "f.yaml:1:1");
  EXPECT_EQ(p.entries[0].value_where, "f.yaml:1:4");
  EXPECT_EQ(p.entries[1].section, "b");
  EXPECT_EQ(p.entries[1].values, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(p.entries[1].where, "f.yaml:3:3");
  EXPECT_EQ(p.entries[2].section, "b.d");
  EXPECT_TRUE(p.entries[2].null);
  EXPECT_TRUE(p.entries[3].null);
}

struct BadYaml {
  const char* text;
  const char* where;
  const char* what;
};

class BadYamlTest : public testing::TestWithParam<BadYaml> {};

TEST_P(BadYamlTest, IsAProblemWithItsPosition) {
  const ParsedYaml p = parse(GetParam().text);
  ASSERT_EQ(p.problems.size(), 1u);
  EXPECT_EQ(p.problems[0].where, GetParam().where);
  EXPECT_NE(p.problems[0].what.find(GetParam().what), std::string::npos) << p.problems[0].what;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadYamlTest,
    testing::Values(BadYaml{"a: 1\na: 2\n", "f.yaml:2:1", "'a' appears twice; first at f.yaml:1:1"},
                    BadYaml{"a_b: 1\nc: 2\na-b: 2\n", "f.yaml:3:1", "appears twice"},
                    BadYaml{"s:\n  a: 1\n  a: 1\n", "f.yaml:3:3", "appears twice"},
                    BadYaml{"a: [1, [2]]\n", "f.yaml:1:8", "list of scalars"},
                    BadYaml{"- 1\n- 2\n", "f.yaml:1:1", "key: value"},
                    BadYaml{"a: b: c\n", "f.yaml:1:5", "not valid YAML"},
                    BadYaml{"a: 1\n---\nb: 2\n", "f.yaml:3:1", "more than one document"},
                    BadYaml{"? [x]\n: 1\n", "f.yaml:1:3", "must be a scalar"},
                    BadYaml{"base: {a: 1}\n", "f.yaml:1:7", "base must be"},
                    BadYaml{"a: {b: {c: {d: {e: {f: 1}}}}}\n", "f.yaml:1:20", "too deep"}));

TEST(Yaml, DeepNestingAndEmptyTextsEndWell) {
  EXPECT_EQ(parse(std::string(100000, '[')).problems.size(), 1u);
  EXPECT_EQ(parse(std::string(100000, '{')).problems.size(), 1u);
  EXPECT_TRUE(parse("").problems.empty());
  EXPECT_TRUE(parse("# only a comment\n").problems.empty());
  EXPECT_TRUE(parse("\xff\xfe").entries.empty());
}

TEST(Yaml, EveryPrefixOfAFileIsReadOrRefused) {
  const std::string text = "base: ~\na: [1, 'two', \"three\"]\nb:\n  c: &x {d: 1}\n  e: *x\n? f\n: g\n";
  for (size_t n = 0; n <= text.size(); ++n) parse(text.substr(0, n));
  EXPECT_TRUE(parse(text).problems.empty());
}

class YamlFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("yaml_test_" + random_hex(12));
    fs::create_directories(folder_ / "sub");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    write_text(folder_ / name, text, ExitCode::config);
  }
  ParsedYaml read(const std::string& name) {
    ParsedYaml out;
    out.entries = read_yaml(folder_ / name, "--config-file", out.problems).entries;
    return out;
  }
  fs::path folder_;
};

TEST_F(YamlFiles, BasesComeFirstAndAreRelativeToTheirFile) {
  write("top.yaml", "a: 3\nbase: [sub/one.yaml, two.yaml]\n");
  write("sub/one.yaml", "base: deep.yaml\na: 1\n");
  write("sub/deep.yaml", "a: 0\n");
  write("two.yaml", "a: 2\n");
  const ParsedYaml p = read("top.yaml");
  ASSERT_TRUE(p.problems.empty());
  std::string order;
  for (const YamlEntry& entry : p.entries) order += entry.values.at(0);
  EXPECT_EQ(order, "0123");
}

TEST_F(YamlFiles, CyclesMissingAndLargeFilesAreProblems) {
  write("a.yaml", "base: b.yaml\n");
  write("b.yaml", "base: a.yaml\n");
  ASSERT_EQ(read("a.yaml").problems.size(), 1u);
  EXPECT_NE(read("a.yaml").problems[0].what.find("includes itself"), std::string::npos);
  EXPECT_NE(read("a.yaml").problems[0].where.find("b.yaml:1:7"), std::string::npos);
  ASSERT_EQ(read("none.yaml").problems.size(), 1u);
  EXPECT_EQ(read("none.yaml").problems[0].where, "--config-file");
  write("large.yaml", "a: " + std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(read("large.yaml").problems.size(), 1u);
  for (int i = 0; i < 20; ++i) write(fmt::format("n{}.yaml", i), fmt::format("base: n{}.yaml\n", i + 1));
  write("n20.yaml", "a: 1\n");
  ASSERT_EQ(read("n0.yaml").problems.size(), 1u);
  EXPECT_NE(read("n0.yaml").problems[0].what.find("too deep"), std::string::npos);
}

}  // namespace
}  // namespace teratron
