#include "teratron/generate/grammar/answer_form.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/generate/grammar/grammar_states.h"

namespace teratron {
namespace {

AnswerForm form_of(const std::string& schema) {
  return {.one_of = {{.schema = schema, .where = "schema"}}};
}

bool accepts(const AnswerGrammar& made, const std::string& text) {
  GrammarStates states(made.grammar, made.root);
  int32_t state = states.start();
  for (const char byte : text) {
    state = states.next(state, static_cast<uint8_t>(byte));
    if (state == GrammarStates::none) return false;
  }
  return states.may_end(state);
}

bool accepts(const AnswerForm& form, const std::string& text) {
  return accepts(answer_grammar(form), text);
}

// What is wrong with a schema; empty: nothing.
std::string problem_of(const std::string& schema) {
  try {
    answer_grammar(form_of(schema));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

struct Case {
  const char* schema;
  std::vector<const char*> fits, fails;
};

void check_cases(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    EXPECT_EQ(problem_of(each.schema), "") << each.schema;
    for (const char* text : each.fits)
      EXPECT_TRUE(accepts(form_of(each.schema), text)) << each.schema << "\n" << text;
    for (const char* text : each.fails)
      EXPECT_FALSE(accepts(form_of(each.schema), text)) << each.schema << "\n" << text;
  }
}

TEST(AnswerForm, AcceptsScalars) {
  check_cases({
      {R"({"type": "object"})",
       {"{}", R"({"a": [1, -2.5e10, true, null, {"b": ""}]})", "{\n  \"a\": \"x\"\n}", R"( {"a":1})"},
       {"", "[]", "1", "{", R"({"a" 1})", R"({"a": 1,})", R"({a: 1})", R"({"a": 01})", R"({"a": 1} x)",
        R"({"a": +1})"}},
      {"true", {"1", "\"x\"", "[]", "null"}, {"nul", "'x'", "[1 2]"}},
      {R"({"type": "string"})",
       {R"("")", R"("\u00e9\n")", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", R"("\ud83d\ude00")",
        R"("\u0000")"},
       {"\"\n\"", "\"\xc3\"", "\"\xff\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xed\xa0\x80\"",
        "\"\xc0\x80\""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("abc")", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", R"("\n\ud83d\ude00")"},
       {R"("a")", R"("abcd")", "\"\xc3\xa9\"", R"("\ud83d\ude00")"}},
      {R"({"type": "integer"})", {"0", "-7", "123456789"}, {"1.5", "1e3", "-", "-0", "007", "\"1\""}},
      {R"({"type": "number"})", {"0", "-0", "-0.5", "1e3", "2E-05"}, {".5", "1.", "1e", "NaN", "1e999"}},
      {R"({"type": ["boolean", "null"]})", {"true", "false", "null"}, {"0", "nulls"}},
      {R"({"enum": ["red", "green", 1, 12, null, {"a": 1}]})",
       {R"("red")", R"("green")", "1", "12", "null", R"({"a":1})"},
       {R"("blue")", "2", R"("gree")", "nul"}},
      {R"({"enum": ["a", 1, null], "type": "string"})", {R"("a")"}, {"1", "null"}},
      {R"({"const": "x\"y"})", {R"("x\"y")"}, {R"("x")"}},
  });
}

TEST(AnswerForm, AcceptsObjectsAndArrays) {
  check_cases({
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
           "required": ["a", "c"], "additionalProperties": false})",
       {R"({"a":1,"b":"","c":0})", R"({"a":1,"c":[]})"},
       {"{}", R"({"a":1})", R"({"c":1,"a":1})", R"({"a":1,"c":1,"d":1})", R"({"a":"","c":1})",
        R"({"a":1,,"c":1})"}},
      {R"({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({ "a" : 1 , "b" : 2 })"},
       {R"({"b":1,"a":1})", R"({"c":1})", R"({,"b":1})", "5"}},
      {R"({"properties": {"ab": {"type": "integer"}, "é": {}}, "required": ["ab", "x"],
           "additionalProperties": {"type": "string"}})",
       {R"({"ab":1,"x":"","a":"","abc":"","b":""})", R"({"ab":1,"é":2,"x":"","":""})"},
       {R"({"ab":1})", R"({"ab":1,"x":1})", R"({"ab":1,"x":"","ab":""})", R"({"ab":1,"x":"","a":1})",
        R"({"ab":1,"x":"","é":""})", R"({"ab":1,"x":"","\u0061b":""})"}},
      {R"({"additionalProperties": {"type": "boolean"}})", {"{}", R"({"q": true})"}, {R"({"q": 1})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2,3]", "[\n 1\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type": "array", "minItems": 2})", {"[1,2]", "[1,2,3,4,5]"}, {"[1]", "[]"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})",
       {"1", "[]", "[1,[2,[3]]]"},
       {"[\"a\"]", "{}"}},
      {R"({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "null"}]})", {"5", "null"}, {"4", "true"}},
      {R"({"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"},
           {"type": "null"}]}}, "required": ["next"]}}, "$ref": "#/$defs/node"})",
       {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
       {R"({"next":1})", "{}"}},
      {R"({"allOf": [{"$ref": "#/definitions/x"}], "definitions": {"x": {"const": 5}}, "title": "t"})",
       {"5"},
       {"6"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-12-31")"},
       {R"("2024-13-01")", R"("2024-02-30")", R"("24-1-1")"}},
      {R"({"format": "date-time"})",
       {R"("2024-01-02T03:04:05Z")", R"("2024-01-02T23:59:59.123+02:00")"},
       {R"("2024-01-02")"}},
      {R"({"format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
  });
}

TEST(AnswerForm, AcceptsPatterns) {
  check_cases({
      {R"({"pattern": "^[A-Z]{2}\\d{4}$"})",
       {R"("AB0123")"},
       {R"("AB012")", R"("AB01234")", R"("ab0123")", R"("xAB0123")",
        "\"AB\xd9\xa0\xd9\xa1\xd9\xa2\xd9\xa3\""}},
      {R"({"type": "string", "pattern": "b+c"})",
       {R"("bc")", R"("a\nbbcd")",
        "\"\xc3\xa9"
        "bc\""},
       {R"("b")", R"("cb")", R"("")"}},
      {R"({"pattern": "^a|b$"})", {R"("ax")", R"("xb")", R"("a")", R"("b")"}, {R"("xa")", R"("bx")"}},
      {R"({"pattern": "^(?:cat|(?<n>dog)s?)(-\\w+?)*$"})",
       {R"("cat")", R"("dogs-x1-y_2")", R"("dog-a")"},
       {R"("cats")", R"("dog-")", R"("dogs ")"}},
      {R"({"pattern": "^[^a-z\\]]$"})",
       {R"("A")", R"("\"")", R"("\\")", R"("\n")", R"("\u0000")", "\"\xe2\x82\xac\"", "\"\xf0\x9f\x98\x80\""},
       {R"("b")", R"("]")", R"("")", "\"\n\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", R"("AA")"}},
      {R"({"pattern": "^[\\u0400-\\u04ff\\u{1F600}-\\u{1f64f}]{2,3}$"})",
       {"\"\xd0\x96\xd1\x8f\"", "\"\xd0\x96\xf0\x9f\x98\x80\xd0\x80\"", "\"\xd3\xbf\xf0\x9f\x99\x8f\""},
       {"\"\xd0\x96\"", "\"\xd4\x80\xd0\x96\"", "\"\xf0\x9f\x99\x90\xd0\x96\"", R"("ab")"}},
      {R"({"pattern": "^\\S+@\\S+\\.\\w{2,}$"})",
       {R"("a@b.cd")", R"("x.y@z.w.org")"},
       {R"("a@b.c")", R"("a @b.cd")"}},
      {R"({"pattern": "^.\\t\\x41\\/$"})", {R"("q\tA/")", R"("\"\tA/")"}, {R"("\n\tA/")", R"("qtA/")"}},
      {R"({"pattern": "^(a*)*b{0}(c?){3}$"})", {R"("")", R"("aaac")", R"("ccc")"}, {R"("b")", R"("cccc")"}},
      {R"({"pattern": "^$"})", {R"("")"}, {R"("a")"}},
      {R"({"pattern": ""})", {R"("")", R"("abc")"}, {"1"}},
  });
}

// Each bound against the values themselves.
TEST(AnswerForm, AcceptsNumbersWithinBounds) {
  const std::vector<std::string> texts = {
      "-1000", "-100.01", "-100", "-99.99", "-12", "-7.5", "-7",  "-1",  "-0.5", "-0.25",  "0",
      "0.0",   "0.1",     "0.10", "0.25",   "0.3", "0.5",  "1",   "1.0", "1.01", "5",      "7",
      "7.5",   "9",       "10",   "12",     "19",  "99",   "100", "101", "999",  "1234567"};
  const std::vector<std::string> bounds = {"-100", "-7.5", "0", "0.25", "7", "9.99", "1e3"};
  for (const std::string& least : bounds) {
    for (const std::string& most : bounds) {
      const double low = std::stod(least), high = std::stod(most);
      for (int kind = 0; kind < 16 && low < high; ++kind) {
        const bool has_low = (kind & 1) == 0, has_high = (kind & 2) == 0, is_open = (kind & 4) != 0,
                   is_integer = (kind & 8) != 0;
        if (is_integer && std::ceil(low) + 1 > std::floor(high) - 1) continue;
        std::string schema = is_integer ? R"({"type": "integer")" : R"({"type": "number")";
        if (has_low) schema += fmt::format(R"(, "{}": {})", is_open ? "exclusiveMinimum" : "minimum", least);
        if (has_high) schema += fmt::format(R"(, "{}": {})", is_open ? "exclusiveMaximum" : "maximum", most);
        const AnswerGrammar made = answer_grammar(form_of(schema + "}"));
        for (const std::string& text : texts) {
          const double value = std::stod(text);
          const bool is_above = !has_low || value > low || (value == low && !is_open);
          const bool is_below = !has_high || value < high || (value == high && !is_open);
          const bool has_form = !is_integer || text.find('.') == std::string::npos;
          EXPECT_EQ(accepts(made, text), is_above && is_below && has_form) << schema << " " << text;
        }
      }
    }
  }
  check_cases(
      {{R"({"minimum": 0, "exclusiveMaximum": 9223372036854775807})", {"0", "9999999999999999"}, {"-1"}},
       {R"({"type": "integer", "minimum": -2, "maximum": 0})", {"-2", "-1", "0"}, {"-0", "1", "-3", "00"}},
       {R"({"minimum": 1, "exclusiveMinimum": 1, "maximum": 2})",
        {"1.5", "2.000"},
        {"1", "1.0", "2.1", "01.5"}},
       {R"({"type": ["integer", "null"], "maximum": 12})", {"12", "-5", "null"}, {"13", "120"}}});
}

TEST(AnswerForm, NamesWhatIsNotSupported) {
  for (const auto& [schema, says] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type": "integer", "multipleOf": 3})", "'multipleOf' of JSON Schema is not supported"},
           {R"({"properties": {"a": {"not": {}}}})",
            "'not' of JSON Schema is not supported (at schema.properties.a)"},
           {R"({"oneOf": []})", "oneOf is not a list of schemas"},
           {R"({"oneOf": [{}], "minimum": 1})", "'minimum' beside 'oneOf'"},
           {R"({"enum": ["ab"], "pattern": "a"})", "'pattern' beside 'enum'"},
           {R"({"minimum": 3, "maximum": 2.5})", "no number is from 3 to 2.5"},
           {R"({"exclusiveMinimum": true})", "exclusiveMinimum = true is not a number"},
           {R"({"maximum": 1e-16})", "more than 15 digits behind the point"},
           {R"({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})", "no finite value fits"},
           {R"({"pattern": 5})", "pattern = 5 is not a text"},
           {R"({"pattern": "a", "format": "date"})", "'format' beside 'pattern'"},
           {R"({"pattern": "a", "maxLength": 3})", "'maxLength' beside 'pattern'"},
           {R"({"pattern": "(?=a)b"})", "looking ahead or behind"},
           {R"({"pattern": "(?<!a)b"})", "looking ahead or behind"},
           {R"({"pattern": "(a)\\1"})", "'\\1'"},
           {R"({"pattern": "\\bword"})", "'\\b' (near character 2) is not supported"},
           {R"({"pattern": "\\p{L}"})", "'\\p'"},
           {R"({"pattern": "a(b"})", "a '(' without ')'"},
           {R"x({"pattern": "ab)"})x", "a ')' without '('"},
           {R"({"pattern": "a$b"})", "'$' that is not at the end"},
           {R"({"pattern": "a^b"})", "'^' that is not at the beginning"},
           {R"x({"pattern": "(a$)"})x", "'$' in a group"},
           {R"({"pattern": "[z-a]"})", "ends before it begins"},
           {R"({"pattern": "[a"})", "a '[' without ']'"},
           {R"({"pattern": "a**"})", "a quantifier without"},
           {R"({"pattern": "a{2"})", "a '{' that is not"},
           {R"({"pattern": "((a?){900}){900}"})", "too large"},
           {R"({"pattern": "^[]$"})", "no finite value fits the schema"},
           {R"({"uniqueItems": true, "type": "array"})", "'uniqueItems'"},
           {R"({"format": "email"})", "format \"email\""},
           {R"({"type": "strin"})", "there is no type"},
           {R"({"type": []})", "names no type"},
           {R"({"$ref": "#/$defs/x"})", "is not in the schema"},
           {R"({"$ref": "http://x/y"})", "is not in the schema"},
           {R"({"anyOf": [{}], "type": "string"})", "'type' beside 'anyOf'"},
           {R"({"allOf": [{}, {}]})", "'allOf' of several"},
           {R"({"enum": []})", "no value fits"},
           {R"({"enum": [1], "type": "string"})", "no value fits"},
           {R"({"minLength": 5, "maxLength": 4})", "minLength = 5 is above maxLength = 4"},
           {R"({"minItems": -1})", "minItems = -1"},
           {R"({"minLength": 1.5})", "minLength = 1.5"},
           {R"({"properties": {}, "required": ["a"], "additionalProperties": false})", "\"a\" is required"},
           {R"({"properties": [], "type": "object"})", "properties has the wrong type"},
           {R"({"items": 5})", "a schema is not an object"},
           {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no finite value fits the schema"},
           {R"({"anyOf": [{"$ref": "#"}]})", "no finite value fits the schema"},
           {"false", "no value fits"}}) {
    EXPECT_NE(problem_of(schema).find(says), std::string::npos) << schema << ": " << problem_of(schema);
  }
}

TEST(AnswerForm, EndlessRecursionIsLeftOutWhereItCan) {
  EXPECT_TRUE(accepts(form_of(R"({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"type": "null"}},
      "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}}})"),
                      R"({"b":null})"));
}

TEST(AnswerForm, PartsStandBetweenTexts) {
  const AnswerForm calls{.one_of = {{.schema = R"({"const": 0})"}},
                         .some_of = {{.before = "<a>", .after = "</a>", .schema = R"({"type": "integer"})"},
                                     {.before = "<b>", .after = "</b>", .schema = R"({"type": "null"})"}},
                         .between = "\n"};
  for (const char* text : {"0", "<a>5</a>", "\n<b>null</b>\n<a>7</a>\n<a>8</a>"})
    EXPECT_TRUE(accepts(calls, text)) << text;
  for (const char* text : {"00", "<a>null</a>", "<a>5</a>0", "<a>5</a><a>5</a>", "<a>5"})
    EXPECT_FALSE(accepts(calls, text)) << text;
  AnswerForm one = calls;
  one.between.clear();
  EXPECT_FALSE(accepts(one, "<a>5</a>\n<a>5</a>"));
  EXPECT_TRUE(accepts(one, "<a>5</a>"));
  EXPECT_TRUE(accepts(answer_form_from_json(to_json(calls)), "<a>5</a>\n<b>null</b>"));
}

TEST(AnswerForm, LargeAndAmbiguousSchemasStaySmall) {
  nlohmann::ordered_json wide = {{"type", "object"}, {"properties", nlohmann::ordered_json::object()}};
  for (int i = 0; i < 800; ++i)
    wide["properties"][fmt::format("name_{}", i)] = {{"type", "string"}, {"maxLength", i}};
  EXPECT_TRUE(accepts(form_of(wide.dump()), R"({"name_3":"abc","name_799":""})"));
  EXPECT_FALSE(accepts(form_of(wide.dump()), R"({"name_3":"abcd"})"));
  // Twice as many ways to read it with each bracket.
  nlohmann::ordered_json deep = {{"$ref", "#/$defs/a24"}, {"$defs", {{"a0", {{"type", "string"}}}}}};
  for (int i = 1; i <= 24; ++i) {
    const nlohmann::ordered_json inner = {{"$ref", fmt::format("#/$defs/a{}", i - 1)}};
    deep["$defs"][fmt::format("a{}", i)] = {{"anyOf",
                                             {{{"type", "array"}, {"items", inner}, {"maxItems", 100}},
                                              {{"type", "array"}, {"items", inner}, {"maxItems", 200}}}}};
  }
  EXPECT_TRUE(accepts(form_of(deep.dump()), std::string(24, '[') + "\"\"" + std::string(24, ']')));
  std::vector<std::string> words;
  for (int i = 0; i < 3000; ++i) words.push_back(fmt::format("word{}", i));
  const std::string list = nlohmann::json{{"enum", words}}.dump();
  EXPECT_TRUE(accepts(form_of(list), "\"word2999\""));
  EXPECT_FALSE(accepts(form_of(list), "\"word3000\""));
}

}  // namespace
}  // namespace teratron
