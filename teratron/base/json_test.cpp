#include "teratron/base/json.h"

#include <chrono>

#include <gtest/gtest.h>

#include "teratron/base/hash.h"

namespace teratron {
namespace {

std::string error_of(std::string_view text, size_t max_depth = 64) {
  try {
    parse_json(text, {.where = "f.json", .kind = ExitCode::data, .max_depth = max_depth});
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    return error.what();
  }
  return "";
}

TEST(Json, ParsesValidInput) {
  const auto value = parse_json(R"({"a": [1, {"b": null}], "c": "\u00e9"})", {});
  EXPECT_EQ(value["a"][0], 1);
  EXPECT_EQ(value["c"], "\xc3\xa9");
}

TEST(Json, ReportsPositionOfDuplicateKeys) {
  EXPECT_NE(error_of("{\n  \"a\": 1,\n  \"a\": 2}").find("f.json:3:5: key \"a\" appears twice"),
            std::string::npos)
      << error_of("{\n  \"a\": 1,\n  \"a\": 2}");
  EXPECT_EQ(error_of(R"({"a": {"a": 1}, "b": {"a": 1}})"), "")
      << "the same key in different objects is valid";
  EXPECT_NE(error_of(R"([{"x": [{"k": 0, "\u006b": 1}]}])"), "") << "an escaped spelling is the same key";
}

TEST(Json, RejectsDeepNesting) {
  EXPECT_EQ(error_of("[[[]]]", 3), "");
  EXPECT_NE(error_of("[[[[]]]]", 3).find("nested more than 3 deep"), std::string::npos);
  EXPECT_NE(error_of(std::string(1000000, '[')).find("nested more than 64 deep"), std::string::npos);
}

TEST(Json, ReportsPositionOfSyntaxErrors) {
  EXPECT_EQ(error_of("{\n\"a\": tru}").substr(0, 11), "f.json:2:9:");
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "1 2", "\"\xff\"", "nul", "{\"a\":1e999}"}) {
    EXPECT_NE(error_of(text), "") << text;
    EXPECT_EQ(error_of(text).find("exception"), std::string::npos) << error_of(text);
    EXPECT_EQ(error_of(text).find("parsing"), std::string::npos) << error_of(text);
  }
  EXPECT_NE(error_of("{\"a\":1e999}").find("f.json:1:10: the number here is beyond the range"),
            std::string::npos)
      << error_of("{\"a\":1e999}");
  EXPECT_NE(error_of("[1,]").find("not valid JSON: the end of '[1,]' is unexpected"), std::string::npos);
}

// Quadratic time shows: it takes seconds for each of these, linear time some hundredths.
TEST(Json, TakesLinearTime) {
  constexpr size_t members = 200'000;
  for (const char* member : {"{}", "[]", "1", "\"a\"", R"({"role":"user","content":"a"})"}) {
    std::string text = R"({"messages":[)" + std::string(member);
    for (size_t i = 1; i < members; ++i) text.append(",").append(member);
    const auto start = std::chrono::steady_clock::now();
    const nlohmann::json value = parse_json(text + "]}", {});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << member;
    EXPECT_EQ(value["messages"].size(), members);
    EXPECT_EQ(value["messages"].back(), nlohmann::json::parse(member));
  }
  std::string keys = "{";
  for (size_t i = 0; i < members; ++i) keys += fmt::format("{}\"k{}\":{{}}", i == 0 ? "" : ",", i);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(keys + "}", {}).size(), members);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// nlohmann's parser without a callback is the reference.
TEST(Json, ReadsWhatNlohmannReads) {
  for (const char* text : {"null",
                           "true",
                           "0",
                           "-0",
                           "-0.0",
                           "18446744073709551615",
                           "-9223372036854775808",
                           "1e400",
                           "1E-400",
                           "123456789012345678901234567890",
                           "[]",
                           "{}",
                           "[[],{}]",
                           R"({"a":{"b":[1,[2,{"c":null}],3]},"d":-1.5})",
                           R"(["\ud83d\ude00","\u0000"])",
                           "\xef\xbb\xbf[1]",
                           " \t\r\n[ 1 , 2 ] ",
                           R"({"":{"":[]}})",
                           "[1",
                           "01",
                           "[1 2]"}) {
    const nlohmann::json expected = nlohmann::json::parse(text, nullptr, false);
    if (expected.is_discarded()) {
      EXPECT_NE(error_of(text), "") << text;
    } else {
      const nlohmann::json value = parse_json(text, {});
      EXPECT_EQ(value, expected) << text;
      EXPECT_EQ(value.dump(), expected.dump()) << text;
    }
  }
}

TEST(Hash, StreamingMatchesOneShot) {
  const std::string text(100000, 'x');
  Hasher hasher;
  hasher.update(text.data(), 1);
  hasher.update(text.data() + 1, text.size() - 1);
  EXPECT_EQ(hasher.digest(), hash_text(text));
  hasher.reset();
  EXPECT_EQ(hasher.digest(), hash_text(""));
  EXPECT_EQ(hash_to_hex(hash_text("")), "2d06800538d394c2") << "XXH3's published hash of the empty string";
  EXPECT_EQ(hash_from_hex("2d06800538d394c2"), hash_text(""));
  for (const char* bad : {"", "2d0680", "2D06800538D394C2", "2d06800538d394c2 ", "-d06800538d394c2"}) {
    EXPECT_FALSE(hash_from_hex(bad)) << bad;
  }
}

}  // namespace
}  // namespace teratron
