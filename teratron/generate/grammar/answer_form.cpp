#include "teratron/generate/grammar/answer_form.h"

#include <nlohmann/json.hpp>

#include "teratron/generate/grammar/schema_rules.h"

namespace teratron {

namespace {

nlohmann::json to_json(const std::vector<AnswerPart>& parts) {
  nlohmann::json list = nlohmann::json::array();
  for (const AnswerPart& each : parts) list.push_back({each.before, each.schema, each.after});
  return list;
}

std::vector<AnswerPart> parts_from_json(const nlohmann::json& list) {
  std::vector<AnswerPart> parts;
  for (const nlohmann::json& each : list)
    parts.push_back({.before = each[0], .after = each[2], .schema = each[1]});
  return parts;
}

class Builder {
 public:
  AnswerGrammar build(const AnswerForm& form) {
    std::vector<GrammarSequence> one_of;
    for (const AnswerPart& each : form.one_of) one_of.push_back(part(each));
    if (!form.some_of.empty()) {
      std::vector<GrammarSequence> calls;
      for (const AnswerPart& each : form.some_of) calls.push_back(part(each));
      const RuleId call = grammar_.add(std::move(calls));
      GrammarSequence some = {ByteGrammar::rule(call)};
      if (!form.between.empty()) {
        const RuleId more =
            grammar_.add({grammar_.text(form.between) + GrammarSequence{ByteGrammar::rule(call)}});
        some.push_back(ByteGrammar::repeat(more, 0));
      }
      one_of.push_back(std::move(some));
    }
    const RuleId answer = grammar_.add(std::move(one_of));
    const RuleId root =
        grammar_.add({{ByteGrammar::rule(JsonRules(grammar_).space()), ByteGrammar::rule(answer)}});
    if (problems_.empty() && grammar_.is_too_large())
      problems_.push_back({"the schema is too large", where_, "Use a smaller one"});
    if (problems_.empty() && !grammar_.keep_finite(root))
      problems_.push_back({"no finite value fits the schema", where_, "Make the recursion optional"});
    if (!problems_.empty()) throw UserError(ExitCode::data, std::move(problems_));
    return {.grammar = std::move(grammar_), .root = root};
  }

 private:
  GrammarSequence part(const AnswerPart& part) {
    where_ = part.where;
    const auto schema = nlohmann::ordered_json::parse(part.schema);
    SchemaRules rules(grammar_, schema, part.where);
    const RuleId value = rules.root();
    problems_.insert(problems_.end(), rules.problems().begin(), rules.problems().end());
    return grammar_.text(part.before) + GrammarSequence{ByteGrammar::rule(value)} + grammar_.text(part.after);
  }

  ByteGrammar grammar_;
  std::string where_;
  std::vector<Problem> problems_;
};

}  // namespace

AnswerGrammar answer_grammar(const AnswerForm& form) {
  return Builder().build(form);
}

nlohmann::json to_json(const AnswerForm& form) {
  return {{"one_of", to_json(form.one_of)}, {"some_of", to_json(form.some_of)}, {"between", form.between}};
}

AnswerForm answer_form_from_json(const nlohmann::json& value) {
  return {.one_of = parts_from_json(value.at("one_of")),
          .some_of = parts_from_json(value.at("some_of")),
          .between = value.at("between")};
}

}  // namespace teratron
