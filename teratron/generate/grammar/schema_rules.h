// JSON Schema as rules of a grammar: texts of JSON values that a schema describes.
//
// Supported: type (one or a list), enum, const, anyOf, oneOf (as anyOf: a value may fit several), allOf of
// one schema, $ref within the schema (also to itself), and schemas that are true. For objects properties,
// required, additionalProperties; for arrays items, minItems, maxItems. For strings minLength, maxLength, or
// pattern (string_patterns.h), or format (string_formats.h); for numbers minimum, maximum, exclusiveMinimum,
// exclusiveMaximum (number_ranges.h). Titles, descriptions, defaults and examples are left out. Anything else
// is an error that names it.
//
// A grammar has fewer texts than the schema. Members come in the order of `properties`; beyond them there are
// members only where additionalProperties allows them by name, or where no properties are listed. Where a
// schema has members of one type without naming it, the standard lets other types pass; here they do not.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/generate/grammar/json_rules.h"
#include "teratron/generate/grammar/number_ranges.h"

namespace teratron {

class SchemaRules {
 public:
  /// `where` names the schema in problems. All must outlive it.
  SchemaRules(ByteGrammar& grammar, const nlohmann::ordered_json& schema, std::string where);
  RuleId root() { return rule(schema_, where_); }
  /// All that is not supported or cannot be.
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  using Json = nlohmann::ordered_json;
  struct Count {
    int64_t least = 0, most = -1;
  };

  RuleId rule(const Json& schema, const std::string& path);
  RuleId rule_of_object(const Json& schema, const std::string& path);
  RuleId reference(const Json& schema, const std::string& path);
  RuleId any_of(const Json& schema, const char* keyword, const std::string& path);
  RuleId values(const Json& schema, const std::string& path);
  RuleId typed(const std::string& type, const Json& schema, const std::string& path);
  RuleId object(const Json& schema, const std::string& path);
  RuleId members(const Json& schema, const std::string& path);
  RuleId array(const Json& schema, const std::string& path);
  RuleId string(const Json& schema, const std::string& path);
  RuleId string_matching(const Json& pattern, const std::string& path);
  RuleId number(bool is_integer, const Json& schema, const std::string& path);
  std::optional<NumberBound> bound(const Json& schema, const std::array<const char*, 2>& names,
                                   const std::string& path);
  std::vector<std::string> types(const Json& schema, const std::string& path);
  Count count(const Json& schema, const std::pair<const char*, const char*>& names, const std::string& path);
  void check_keywords(const Json& schema, const std::string& path);
  RuleId fail(const std::string& path, std::string what, std::string fix);

  ByteGrammar& grammar_;
  JsonRules json_;
  const Json& schema_;
  std::string where_;
  std::map<const Json*, RuleId> references_;
  std::vector<Problem> problems_;
};

}  // namespace teratron
