// The form that an answer must have, whatever the model would rather write: a JSON value of a schema, perhaps
// between texts, or several such behind each other.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "teratron/generate/grammar/byte_grammar.h"

namespace teratron {

struct AnswerPart {
  std::string before = {}, after = {};
  std::string schema = {};  // as JSON
  std::string where = {};   // of the schema, in errors
  bool operator==(const AnswerPart&) const = default;
};

struct AnswerForm {
  std::vector<AnswerPart> one_of = {};   // one of these,
  std::vector<AnswerPart> some_of = {};  // or one or more of these
  std::string between = {};              // with this between them; empty: only one

  bool empty() const { return one_of.empty() && some_of.empty(); }
  bool operator==(const AnswerForm&) const = default;
};

struct AnswerGrammar {
  ByteGrammar grammar = {};
  RuleId root = 0;
};
/// White space may precede the answer. UserError(data) with what is not supported in the schemas
/// (schema_rules.h).
AnswerGrammar answer_grammar(const AnswerForm& form);

/// For the other ranks of a job.
nlohmann::json to_json(const AnswerForm& form);
AnswerForm answer_form_from_json(const nlohmann::json& value);

}  // namespace teratron
