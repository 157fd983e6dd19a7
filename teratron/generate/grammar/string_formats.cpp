#include "teratron/generate/grammar/string_formats.h"

#include <string>
#include <vector>

#include "teratron/generate/grammar/json_rules.h"

namespace teratron {

namespace {

// A sequence from a text in which '0' to '9' are a digit up to this one, 'h' is one of hexadecimal, and other
// bytes are themselves.
GrammarSequence pattern(ByteGrammar& grammar, std::string_view text) {
  GrammarSequence sequence;
  for (const char each : text) {
    if (each >= '0' && each <= '9') {
      sequence.push_back(grammar.bytes(byte_range('0', static_cast<uint8_t>(each))));
    } else if (each == 'h') {
      sequence.push_back(grammar.bytes(byte_range('0', '9') | byte_range('a', 'f')));
    } else {
      sequence = sequence + grammar.text(std::string_view(&each, 1));
    }
  }
  return sequence;
}

RuleId any_pattern(ByteGrammar& grammar, const std::vector<std::string_view>& patterns) {
  std::vector<GrammarSequence> one_of;
  for (const std::string_view each : patterns) one_of.push_back(pattern(grammar, each));
  return grammar.add(std::move(one_of));
}

// `from` to `to`, two digits.
RuleId numbers(ByteGrammar& grammar, int from, int to) {
  std::vector<std::string> texts;
  for (int i = from; i <= to; ++i)
    texts.push_back({static_cast<char>('0' + i / 10), static_cast<char>('0' + i % 10)});
  return JsonRules(grammar).one_of(texts);
}

RuleId date(ByteGrammar& grammar) {
  JsonRules json(grammar);
  const auto days = [&](std::vector<std::string> months, int last) {
    return GrammarSequence{ByteGrammar::rule(json.one_of(std::move(months))), grammar.byte('-'),
                           ByteGrammar::rule(numbers(grammar, 1, last))};
  };
  const RuleId day = grammar.add({days({"01", "03", "05", "07", "08", "10", "12"}, 31),
                                  days({"04", "06", "09", "11"}, 30), days({"02"}, 28)});
  const GrammarSequence century = {grammar.bytes(byte_range('1', '9'))};
  return grammar.add({century + pattern(grammar, "999-") + GrammarSequence{ByteGrammar::rule(day)}});
}

RuleId time(ByteGrammar& grammar) {
  const GrammarElement colon = grammar.byte(':'), hour = ByteGrammar::rule(numbers(grammar, 0, 23)),
                       sixty = ByteGrammar::rule(numbers(grammar, 0, 59));
  const RuleId fraction = any_pattern(grammar, {"", ".9", ".999", ".999999"});
  const RuleId zone = grammar.add({{grammar.byte('Z')},
                                   {grammar.byte('+'), hour, colon, sixty},
                                   {grammar.byte('-'), hour, colon, sixty}});
  return grammar.add(
      {{hour, colon, sixty, colon, sixty, ByteGrammar::rule(fraction), ByteGrammar::rule(zone)}});
}

}  // namespace

std::optional<RuleId> string_of_format(ByteGrammar& grammar, std::string_view format) {
  GrammarSequence content;
  if (format == "uuid") {
    content = pattern(grammar, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh");
  } else if (format == "date") {
    content = {ByteGrammar::rule(date(grammar))};
  } else if (format == "time") {
    content = {ByteGrammar::rule(time(grammar))};
  } else if (format == "date-time") {
    content = {ByteGrammar::rule(date(grammar)), grammar.byte('T'), ByteGrammar::rule(time(grammar))};
  } else {
    return std::nullopt;
  }
  const GrammarSequence quote = {grammar.byte('"')};
  return grammar.add({quote + content + quote});
}

}  // namespace teratron
