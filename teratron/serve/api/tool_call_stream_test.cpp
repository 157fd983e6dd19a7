#include "teratron/serve/api/tool_call_stream.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

struct Parsed {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

// In pieces of so many bytes.
Parsed parsed(const std::string& text, size_t bytes, bool parallel = true) {
  ToolCallStream stream({.functions = {"f", "g"}, .parallel = parallel});
  Parsed all;
  const auto take = [&](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      all.content += piece.content;
      if (piece.call < 0) continue;
      if (!piece.name.empty()) all.calls.emplace_back(piece.name, "");
      EXPECT_EQ(piece.call + 1, static_cast<int64_t>(all.calls.size())) << text;
      all.calls.back().second += piece.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(stream.add(text.substr(at, bytes)));
  take(stream.finish());
  EXPECT_EQ(stream.calls(), static_cast<int64_t>(all.calls.size()));
  return all;
}

TEST(ToolCallStream, FindsCallsHoweverTheTextIsCut) {
  const std::vector<std::pair<std::string, Parsed>> cases = {
      {"Hello {\"a\": 1} <tool", {"Hello {\"a\": 1} <tool", {}}},
      {" \n", {" \n", {}}},
      {"Text \n ends. \n", {"Text \n ends. \n", {}}},
      {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"}<\\\"\", \"y\": [1, {}]}}\n</tool_call>",
       {"", {{"f", "{\"x\": \"}<\\\"\", \"y\": [1, {}]}"}}}},
      {"\nI look.\n<tool_call>{\"arguments\": {}, \"name\": "
       "\"f\"}</tool_call>\n<tool_call>\n{\"name\":\"h\",\"arguments\":{\"z\":0}}"
       "\n</tool_call>\n",
       {"\nI look.", {{"f", "{}"}, {"h", "{\"z\":0}"}}}},
      {"<tool_call>{\"name\": \"g\"}</tool_call>", {"", {{"g", "{}"}}}},
      {"<tool_call>{\"name\": \"g\", \"arguments\": null}</tool_call> Done.", {" Done.", {{"g", "{}"}}}},
      {"<tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       {"", {{"g", "{\"a\": 1}"}}}},
      {"<tool_call>nothing</tool_call>", {"<tool_call>nothing</tool_call>", {}}},
      {"<tool_call>\n{\"nam\": 1}</tool_call>", {"<tool_call>\n{\"nam\": 1}</tool_call>", {}}},
      {"<tool_call>{\"name\": \"f\", \"argu", {"<tool_call>{\"name\": \"f\", \"argu", {}}},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", {"", {{"f", "{\"a\": \"b"}}}},
      {"{\"name\": \"f\", \"parameters\": {\"x\": 1}}", {"", {{"f", "{\"x\": 1}"}}}},
      {" <|python_tag|> {\"type\": \"function\", \"name\": \"g\", \"parameters\": {}}; {\"name\": \"f\", "
       "\"parameters\": {}}",
       {"", {{"g", "{}"}, {"f", "{}"}}}},
      {"<|python_tag|>print(1)", {"<|python_tag|>print(1)", {}}},
      {"{\"name\": \"Ann\", \"parameters\": {}}", {"{\"name\": \"Ann\", \"parameters\": {}}", {}}},
      {"{\"parameters\": {}, \"name\": \"Ann\"}", {"{\"parameters\": {}, \"name\": \"Ann\"}", {}}},
      {"{\"name\": \"f\", \"age\": 3}", {"{\"name\": \"f\", \"age\": 3}", {}}},
      {"{\"name\": \"f\"}", {"{\"name\": \"f\"}", {}}},
      {"{}", {"{}", {}}},
      {"{\"a", {"{\"a", {}}},
  };
  for (const auto& [text, expected] : cases) {
    for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
      const Parsed found = parsed(text, bytes);
      EXPECT_EQ(found.content, expected.content) << text << " by " << bytes;
      EXPECT_EQ(found.calls, expected.calls) << text << " by " << bytes;
    }
  }
}

TEST(ToolCallStream, OnlyTheFirstCallWhereSeveralAreNotWanted) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(parsed("a" + call + call + "b", 7, false), (Parsed{"a", {{"f", "{}"}}}));
}

}  // namespace
}  // namespace teratron
