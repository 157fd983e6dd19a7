// Cases whose text follows from Jinja's documentation; tests/parity compares with Jinja itself.
#include "teratron/tokenizer/jinja/jinja_template.h"

#include <chrono>

#include <gtest/gtest.h>

namespace teratron::jinja {
namespace {

std::string render(const std::string& source,
                   const nlohmann::ordered_json& values = nlohmann::ordered_json::object()) {
  return Template(source, "t").render(values).text;
}

std::string error_of(const std::string& source) {
  try {
    return "text: " + render(source);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::data);
    return error.what();
  }
}

TEST(JinjaTemplate, BlocksTakeTheirLinesAway) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a {%- if true -%} b {%- endif +%}\nc"), "ab\nc");
  EXPECT_EQ(render("{{ 1 }}\n{# x #}\n{% raw %}{{ x }}{% endraw %}"), "1\n{{ x }}");
}

TEST(JinjaTemplate, ALoopsNamesEndWithTheLoop) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [2, 3] %}{{ x }}{% set x = i %}{{ x }},{% endfor %}{{ x }}"),
            "12,13,1");
  EXPECT_EQ(render("{% set ns = namespace(x=1) %}{% for i in [2, 3] %}{% set ns.x = ns.x + i %}{% endfor "
                   "%}{{ ns.x }}"),
            "6");
}

TEST(JinjaTemplate, GenerationMarksItsText) {
  const Rendered rendered = Template("a{% generation %}b\xC3\xA9{% endgeneration %}c", "t")
                                .render(nlohmann::ordered_json::object());
  EXPECT_EQ(rendered.text,
            "ab\xC3\xA9"
            "c");
  EXPECT_EQ(rendered.generated, (std::vector<std::pair<size_t, size_t>>{{1, 4}}));
}

TEST(JinjaTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("\n\n{{ raise_exception('not so') }}").substr(0, 12), "t:3: not so.");
  EXPECT_NE(error_of("a\n{% if x %}").find("t:2: "), std::string::npos);
  EXPECT_NE(error_of("{{ x.y }}").find("'x' is undefined"), std::string::npos);
  EXPECT_NE(error_of("{{ [].append(1) }}").find("would change a value"), std::string::npos);
}

TEST(JinjaTemplate, RefusesWhatJinjaRefuses) {
  for (const char* const each : {
           R"j({{ nothing.x }})j",
           R"j({{ nothing + 1 }})j",
           R"j({{ 'a' + 1 }})j",
           R"j({{ 1 / 0 }})j",
           R"j({{ messages.x.y }})j",
           R"j({{ f() }})j",
           R"j({{ 'a'|nofilter }})j",
           R"j({% if x %})j",
           R"j({{ x)j",
           R"j({% endif %})j",
           R"j({% for %}{% endfor %})j",
           R"j({{ [1,2] })j",
           R"j({% unknown %})j",
           R"j({{ raise_exception('no ' ~ 1) }})j",
           R"j({{ [].append(1) }})j",
           R"j({{ range(1000000) }})j",
           R"j({{ 1 is nosuchtest }})j",
           R"j({{ ''.join([1]) }})j",
           R"j({{ 'x' in 5 }})j",
           R"j({{ none.a.b }})j",
           R"j({% set messages.x = 1 %})j",
           R"j({% for a, b in [(1,2,3)] %}{% endfor %})j",
           R"j({{ {}|length }}{{ {[1]: 2} }})j",
           R"j({{ '%d' % 'x' }})j",
           R"j({{ 'a' < 1 }})j",
           R"j({{ 5|length }})j",
           R"j({% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }})j",
           R"j({% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }})j",
           R"j({{ "a" "b }})j",
           R"j({% break %})j",
           R"j({{ dict(*[1, 2], *[3]) }})j",
           R"j({{ dict(**{}, a=1) }})j",
           R"j({{ dict(*[], 1) }})j",
           R"j({{ dict(**1) }})j",
           R"j({{ dict(*1) }})j",
           R"j({{ *[1] }})j",
       }) {
    const std::string error = error_of(each);
    EXPECT_EQ(error.find("t:1: "), 0U) << each << ": " << error;
  }
}

TEST(JinjaTemplate, HostileTemplatesEnd) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "(";
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += " + 1";
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  const std::string endless =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  const std::string recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
  const std::string doubled =
      "{% set ns = namespace(x='abcdefgh') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor "
      "%}";
  const std::string nested =
      "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x "
      "}}";
  for (const std::string& each :
       {"{{ " + deep,
        chain + " }}",
        blocks,
        endless,
        recursion,
        doubled,
        nested,
        std::string("{{ 'x' * 99999999999 }}"),
        std::string("{{ [0] * 99999999999 }}"),
        std::string("{{ range(99999999999) }}"),
        std::string("{{ 2 ** 99999999999 }}"),
        std::string("{{ 'x' | center(99999999999) }}"),
        std::string("{{ 'x' | indent(99999999999) }}"),
        std::string("{{ [[1]] | tojson(indent=99999999999) }}"),
        std::string("{{ '%999999999d' % 1 }}"),
        std::string("{{ 'a' | batch(99999999999, 'x') | list }}"),
        std::string("{{ 'x'.zfill(99999999999) }}"),
        std::string("{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% set y = x.replace('a', 'b') %}"
                    "{% endfor %}"),
        std::string("{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ ('a' * 500000 ~ 'b') in x }}"
                    "{% endfor %}"),
        std::string("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
                    "endfor %}"),
        std::string("{% for a in [1] recursive %}{{ loop([a]) }}{% endfor %}")}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(error_of(each).find("text: "), std::string::npos) << each.substr(0, 80);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << each.substr(0, 80);
  }
}

}  // namespace
}  // namespace teratron::jinja
