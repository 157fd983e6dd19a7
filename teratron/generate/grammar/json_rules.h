// Rules of JSON texts. White space between tokens is nothing, a blank, or a new line with up to 32 blanks;
// numbers have at most 16 digits before and after the point and an exponent of two: every program reads them.
#pragma once

#include <string>
#include <vector>

#include "teratron/generate/grammar/byte_grammar.h"

namespace teratron {

class JsonRules {
 public:
  /// Adds its rules to `grammar`, which must outlive it, as they are asked for.
  explicit JsonRules(ByteGrammar& grammar) : grammar_(grammar) {}

  RuleId space();
  RuleId value();
  RuleId object();
  RuleId array();
  RuleId number();
  RuleId integer();
  /// With so many characters; `most` below 0: any number.
  RuleId string(int64_t least = 0, int64_t most = -1);
  /// A name of a member that is none of these, which are JSON strings with their quotes. Without escapes.
  RuleId other_name(std::vector<std::string> names);
  /// One of these texts.
  RuleId one_of(std::vector<std::string> texts);
  /// ',' between elements or members.
  GrammarSequence comma() { return spaced(','); }
  /// ':' between a name and its value.
  GrammarSequence colon() { return spaced(':'); }
  /// Between brackets, some of `element` with commas between them; `most` below 0: any number.
  std::vector<GrammarSequence> list(const GrammarSequence& element, int64_t least, int64_t most);

 private:
  GrammarSequence spaced(char mark);
  RuleId digits(int64_t least, int64_t most);
  RuleId hex();
  RuleId character();
  RuleId wide_character();
  RuleId plain_character();
  RuleId escape();
  RuleId texts_from(const std::vector<std::string>& sorted, size_t at);
  RuleId names_from(const std::vector<std::string>& names, size_t at);

  ByteGrammar& grammar_;
  RuleId value_ = -1;
};

/// Elements of several sequences behind each other.
GrammarSequence operator+(GrammarSequence first, const GrammarSequence& second);

}  // namespace teratron
