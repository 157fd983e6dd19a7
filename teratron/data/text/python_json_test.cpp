#include "teratron/data/text/python_json.h"

#include <gtest/gtest.h>
#include <simdjson.h>

namespace teratron {
namespace {

bool is_json(const std::string& line) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  return parser.parse(line).get(root) == simdjson::SUCCESS;
}

// As Python 3.11's json.loads.
bool python_accepts(const std::string& line) {
  if (is_json(line)) return true;
  const auto strict = to_strict_json(line);
  return strict && is_json(*strict);
}

TEST(PythonJson, AcceptsWhatPythonAccepts) {
  for (const char* line :
       {R"({"a": NaN})", R"({"a": [Infinity, -Infinity, 1]})", R"({"a": 123456789012345678901234567890})",
        R"({"a": 1e999, "b": -1.5E-3})", R"({"a": "\ud800"})", R"({"a\udc00": "\\ud800 \ud83d\ude00"})",
        R"({"a": "\ud800\ud800\udc00"})", R"({"NaN": NaN})"}) {
    EXPECT_TRUE(python_accepts(line)) << line;
  }
}

TEST(PythonJson, RejectsWhatPythonRejects) {
  for (const char* line :
       {R"({"a": nan})", R"({"a": NaNs})", R"({"a": +1})", R"({"a": 01})", R"({"a": .5})", R"({"a": 1.})",
        R"({"a": 1e})", R"({"a": -})", R"({"a": --Infinity})", R"({"a": -NaN})", R"({"a": 0.Infinity})",
        R"({"a": Infinity1})", R"({"a": NaN NaN})", R"({"a": 99999999999999999999x})", R"({"a": "\ud80"})",
        R"({"a": NaN)", R"({"a": NaN, "b": "open)", R"({"a": "\ud800)"}) {
    EXPECT_FALSE(python_accepts(line)) << line;
  }
}

TEST(PythonJson, LeavesOtherTextUnchanged) {
  EXPECT_FALSE(to_strict_json(R"({"a": "NaN 12 \u00e9 \ud83d\ude00 \\ud800"})"));
  EXPECT_EQ(to_strict_json(R"(["\ud800é","x", NaN])"), R"(["\uffffé","x", 0  ])");
}

}  // namespace
}  // namespace teratron
