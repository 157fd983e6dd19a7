#include "teratron/generate/grammar/schema_rules.h"

#include <algorithm>
#include <array>
#include <set>

#include "teratron/generate/grammar/string_formats.h"
#include "teratron/generate/grammar/string_patterns.h"

namespace teratron {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::array annotations = {"title",    "description", "default",    "examples",     "example",
                                    "$schema",  "$id",         "$comment",   "$defs",        "definitions",
                                    "readOnly", "writeOnly",   "deprecated", "discriminator"};
constexpr std::array least_names = {"minimum", "exclusiveMinimum"},
                     most_names = {"maximum", "exclusiveMaximum"};
constexpr std::array keywords = {"type",
                                 "enum",
                                 "const",
                                 "anyOf",
                                 "oneOf",
                                 "allOf",
                                 "$ref",
                                 "properties",
                                 "required",
                                 "additionalProperties",
                                 "items",
                                 "minItems",
                                 "maxItems",
                                 "minLength",
                                 "maxLength",
                                 "pattern",
                                 "format",
                                 "minimum",
                                 "maximum",
                                 "exclusiveMinimum",
                                 "exclusiveMaximum"};

template <typename List>
bool has(const List& list, const std::string& name) {
  return std::ranges::any_of(list, [&](const char* each) { return name == each; });
}

bool fits(const Json& value, const std::string& type) {
  return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
         (type == "integer" && value.is_number_integer()) || (type == "number" && value.is_number()) ||
         (type == "string" && value.is_string()) || (type == "array" && value.is_array()) ||
         (type == "object" && value.is_object());
}

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const Json& or_null(const Json& object, const char* name) {
  static const Json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

}  // namespace

SchemaRules::SchemaRules(ByteGrammar& grammar, const Json& schema, std::string where)
    : grammar_(grammar), json_(grammar), schema_(schema), where_(std::move(where)) {}

RuleId SchemaRules::fail(const std::string& path, std::string what, std::string fix) {
  constexpr size_t most = 10;
  if (problems_.size() < most) {
    const std::string place = path == where_ ? "" : fmt::format(" (at {})", printable(path, 200));
    problems_.push_back({.what = std::move(what) + place, .where = where_, .fix = std::move(fix)});
  }
  return json_.value();
}

RuleId SchemaRules::rule(const Json& schema, const std::string& path) {
  if (grammar_.is_too_large()) return fail(where_, "the schema is too large", "Use a smaller one");
  if (schema == true) return json_.value();
  if (schema.is_boolean()) return fail(path, "no value fits a schema that is false", "Describe a value");
  if (!schema.is_object()) return fail(path, "a schema is not an object", "Write {\"type\": ...}");
  return rule_of_object(schema, path);
}

void SchemaRules::check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [name, value] : schema.items()) {
    const bool is_off = name == "uniqueItems" && value == false;
    if (has(annotations, name) || has(keywords, name) || is_off) continue;
    fail(path, fmt::format("'{}' of JSON Schema is not supported", printable(name, 60)), "Leave it out");
  }
  // These are the whole schema where they stand.
  for (const char* const alone : {"$ref", "anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(alone)) continue;
    for (const auto& [name, value] : schema.items()) {
      if (name != alone && has(keywords, name))
        fail(path, fmt::format("'{}' beside '{}' is not supported", printable(name, 60), alone),
             fmt::format("Move it into the schemas of {}", alone));
    }
  }
}

RuleId SchemaRules::rule_of_object(const Json& schema, const std::string& path) {
  check_keywords(schema, path);
  if (schema.contains("$ref")) return reference(schema["$ref"], path);
  for (const char* const keyword : {"anyOf", "oneOf"}) {
    if (schema.contains(keyword)) return any_of(schema, keyword, path);
  }
  if (schema.contains("allOf")) {
    const Json& all = schema["allOf"];
    if (!all.is_array() || all.size() != 1)
      return fail(path, "'allOf' of several schemas is not supported", "Join them");
    return rule(all[0], path + ".allOf[0]");
  }
  if (schema.contains("enum") || schema.contains("const")) return values(schema, path);
  std::vector<GrammarSequence> one_of;
  const std::vector<std::string> all = types(schema, path);
  if (all.empty()) return json_.value();
  for (const std::string& type : all) one_of.push_back({ByteGrammar::rule(typed(type, schema, path))});
  return grammar_.add(std::move(one_of));
}

RuleId SchemaRules::reference(const Json& target, const std::string& path) {
  const std::string text = target.is_string() ? target.get<std::string>() : "";
  const Json* found = nullptr;
  if (text.starts_with('#')) {
    try {
      found = &schema_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
    }
  }
  if (found == nullptr)
    return fail(path, fmt::format("$ref {} is not in the schema", printable(text_of(target), 100)),
                "Write \"#/$defs/NAME\"");
  const auto known = references_.find(found);
  if (known != references_.end()) return known->second;
  const RuleId declared = grammar_.declare();
  references_.emplace(found, declared);
  const RuleId made = rule(*found, text);
  grammar_.define(declared, {{ByteGrammar::rule(made)}});
  return declared;
}

RuleId SchemaRules::any_of(const Json& schema, const char* keyword, const std::string& path) {
  const Json& schemas = schema[keyword];
  if (!schemas.is_array() || schemas.empty())
    return fail(path, fmt::format("{} is not a list of schemas", keyword), "List some schemas");
  std::vector<GrammarSequence> one_of;
  for (size_t i = 0; i < schemas.size(); ++i)
    one_of.push_back({ByteGrammar::rule(rule(schemas[i], fmt::format("{}.{}[{}]", path, keyword, i)))});
  return grammar_.add(std::move(one_of));
}

RuleId SchemaRules::values(const Json& schema, const std::string& path) {
  for (const auto& [name, value] : schema.items()) {
    const bool is_read = name == "type" || name == "enum" || name == "const";
    if (has(keywords, name) && !is_read)
      fail(path, fmt::format("'{}' beside 'enum' or 'const' is not supported", name), "Leave it out");
  }
  std::vector<Json> all;
  if (schema.contains("const")) all.push_back(schema["const"]);
  if (schema.contains("enum")) {
    const Json& given = schema["enum"];
    if (!given.is_array()) return fail(path, "enum is not a list of values", "List some values");
    if (all.empty()) all.assign(given.begin(), given.end());
    if (std::ranges::find(given, all.empty() ? Json() : all.front()) == given.end()) all.clear();
  }
  if (schema.contains("type")) {
    const std::vector<std::string> allowed = types(schema, path);
    std::erase_if(all, [&](const Json& value) {
      return std::ranges::none_of(allowed, [&](const std::string& type) { return fits(value, type); });
    });
  }
  if (all.empty()) return fail(path, "no value fits enum, const and type", "List at least one value");
  std::vector<std::string> texts;
  for (const Json& value : all) texts.push_back(text_of(value));
  return json_.one_of(std::move(texts));
}

// The types that are named, or the one that its other members are about; none: any.
std::vector<std::string> SchemaRules::types(const Json& schema, const std::string& path) {
  if (!schema.contains("type")) {
    for (const char* const name : {"properties", "required", "additionalProperties"}) {
      if (schema.contains(name)) return {"object"};
    }
    for (const char* const name : {"items", "minItems", "maxItems"}) {
      if (schema.contains(name)) return {"array"};
    }
    for (const char* const name : {"minLength", "maxLength", "pattern", "format"}) {
      if (schema.contains(name)) return {"string"};
    }
    for (const auto& names : {least_names, most_names}) {
      if (schema.contains(names[0]) || schema.contains(names[1])) return {"number"};
    }
    return {};
  }
  const Json& type = schema["type"];
  std::vector<std::string> all;
  for (const Json& each : type.is_array() ? type : Json::array({type})) {
    const std::string name = each.is_string() ? each.get<std::string>() : "";
    constexpr std::array known = {"null", "boolean", "integer", "number", "string", "array", "object"};
    if (has(known, name)) {
      all.push_back(name);
    } else {
      fail(path, fmt::format("there is no type {}", printable(text_of(each), 60)),
           "Use null, boolean, integer, number, string, array or object");
    }
  }
  if (all.empty()) fail(path, "type names no type", "Name one");
  return all;
}

RuleId SchemaRules::typed(const std::string& type, const Json& schema, const std::string& path) {
  if (type == "null") return json_.one_of({"null"});
  if (type == "boolean") return json_.one_of({"true", "false"});
  if (type == "integer" || type == "number") return number(type == "integer", schema, path);
  if (type == "string") return string(schema, path);
  return type == "array" ? array(schema, path) : object(schema, path);
}

SchemaRules::Count SchemaRules::count(const Json& schema, const std::pair<const char*, const char*>& names,
                                      const std::string& path) {
  constexpr int64_t largest = 1'000'000'000;
  Count found;
  const auto read = [&](const char* name, int64_t& target) {
    const Json& value = or_null(schema, name);
    if (value.is_null()) return;
    const bool is_count = value.is_number_integer() && value >= 0 && value <= largest;
    if (!is_count) {
      fail(path, fmt::format("{} = {} is not in [0, {}]", name, printable(text_of(value), 40), largest),
           "Use a number in this range");
    } else {
      target = value;
    }
  };
  read(names.first, found.least);
  read(names.second, found.most);
  if (found.most < 0 || found.least <= found.most) return found;
  fail(path, fmt::format("{} = {} is above {} = {}", names.first, found.least, names.second, found.most),
       "Use less");
  return {};
}

RuleId SchemaRules::string(const Json& schema, const std::string& path) {
  const Count length = count(schema, {"minLength", "maxLength"}, path);
  const Json& format = or_null(schema, "format");
  const char* const alone = schema.contains("pattern") ? "pattern" : "format";
  if (!schema.contains(alone)) return json_.string(length.least, length.most);
  for (const char* const name : {"minLength", "maxLength", "format"}) {
    if (schema.contains(name) && std::string_view(name) != alone)
      return fail(path, fmt::format("'{}' beside '{}' is not supported", name, alone),
                  "Leave one of them out");
  }
  if (schema.contains("pattern")) return string_matching(schema["pattern"], path);
  const std::optional<RuleId> known =
      format.is_string() ? string_of_format(grammar_, format.get<std::string>()) : std::nullopt;
  if (!known)
    return fail(path, fmt::format("format {} is not supported", printable(text_of(format), 60)),
                fmt::format("Leave it out, or use {}", string_formats));
  return *known;
}

RuleId SchemaRules::string_matching(const Json& pattern, const std::string& path) {
  if (!pattern.is_string())
    return fail(path, fmt::format("pattern = {} is not a text", printable(text_of(pattern), 60)),
                "Write a regular expression");
  try {
    return string_of_pattern(grammar_, pattern.get<std::string>());
  } catch (const UnsupportedPattern& problem) {
    return fail(
        path,
        fmt::format("pattern {}: {} is not supported", printable(text_of(pattern), 100), problem.what()),
        "Change it, or leave the pattern out");
  }
}

// The narrower one of an inclusive and an exclusive bound.
std::optional<NumberBound> SchemaRules::bound(const Json& schema, const std::array<const char*, 2>& names,
                                              const std::string& path) {
  std::optional<NumberBound> found;
  std::optional<double> narrowest;
  const double sign = names == least_names ? 1 : -1;
  for (const char* const name : names) {
    const Json& value = or_null(schema, name);
    if (value.is_null()) continue;
    if (!value.is_number()) {
      fail(path, fmt::format("{} = {} is not a number", name, printable(text_of(value), 40)),
           "Write a number");
      continue;
    }
    const double here = sign * value.get<double>();
    if (narrowest && here < *narrowest) continue;
    narrowest = here;
    found = {.number = text_of(value), .is_included = name == names[0]};
  }
  return found;
}

RuleId SchemaRules::number(bool is_integer, const Json& schema, const std::string& path) {
  const NumberRange range{.least = bound(schema, least_names, path),
                          .most = bound(schema, most_names, path),
                          .is_integer = is_integer};
  if (!range.least && !range.most) return is_integer ? json_.integer() : json_.number();
  if (range.least && range.most && Json::parse(range.least->number) > Json::parse(range.most->number))
    return fail(path, fmt::format("no number is from {} to {}", range.least->number, range.most->number),
                "Use a greater maximum");
  try {
    return number_between(grammar_, range);
  } catch (const std::invalid_argument& problem) {
    return fail(path, fmt::format("a bound has {}", problem.what()), "Round it");
  }
}

RuleId SchemaRules::array(const Json& schema, const std::string& path) {
  const Count size = count(schema, {"minItems", "maxItems"}, path);
  const Json& items = or_null(schema, "items");
  const RuleId item = items.is_null() || size.most == 0 ? json_.value() : rule(items, path + ".items");
  const RuleId elements = grammar_.add(json_.list({ByteGrammar::rule(item)}, size.least, size.most));
  return grammar_.add({{grammar_.byte('['), ByteGrammar::rule(json_.space()), ByteGrammar::rule(elements),
                        grammar_.byte(']')}});
}

RuleId SchemaRules::object(const Json& schema, const std::string& path) {
  for (const auto& [name, is_valid] :
       {std::pair{"properties", or_null(schema, "properties").is_null() || schema["properties"].is_object()},
        std::pair{"required", or_null(schema, "required").is_null() ||
                                  (schema["required"].is_array() &&
                                   std::ranges::all_of(schema["required"], [](const Json& each) {
                                     return each.is_string();
                                   }))}}) {
    if (!is_valid)
      return fail(path, fmt::format("{} has the wrong type", name),
                  "properties is an object of schemas, required a list of their names");
  }
  return grammar_.add({{grammar_.byte('{'), ByteGrammar::rule(json_.space()),
                        ByteGrammar::rule(members(schema, path)), grammar_.byte('}')}});
}

// Listed members in their order, where those that are not required may be left out, and others behind
// them.
RuleId SchemaRules::members(const Json& schema, const std::string& path) {
  struct Member {
    std::string name;  // as JSON
    RuleId value;
    bool is_required;
  };
  std::set<std::string> required;
  for (const Json& each : or_null(schema, "required")) required.insert(text_of(each));
  const Json& additional = or_null(schema, "additionalProperties");
  std::vector<Member> listed;
  for (const auto& [name, value] : or_null(schema, "properties").items()) {
    const std::string text = text_of(name);
    listed.push_back(
        {text, rule(value, fmt::format("{}.properties.{}", path, name)), required.erase(text) > 0});
  }
  const bool has_others = additional.is_null() ? listed.empty() : additional != false;
  const RuleId other =
      additional.is_null() || !has_others ? json_.value() : rule(additional, path + ".additionalProperties");
  for (const std::string& name : required) {
    if (!has_others)
      fail(path, fmt::format("{} is required and not among the properties", printable(name, 80)),
           "Describe it in properties");
    listed.push_back({name, other, true});
  }
  std::vector<std::string> names;
  for (const Member& each : listed) names.push_back(each.name);
  const GrammarElement space = ByteGrammar::rule(json_.space());
  GrammarSequence member;
  if (has_others)
    member = GrammarSequence{ByteGrammar::rule(json_.other_name(names))} + json_.colon() +
             GrammarSequence{ByteGrammar::rule(other)};
  // What follows the members so far, of which there are none or some.
  RuleId none = grammar_.add(has_others ? json_.list(member, 0, -1) : std::vector<GrammarSequence>{{}});
  RuleId some = grammar_.add(
      {has_others ? GrammarSequence{ByteGrammar::repeat(grammar_.add({json_.comma() + member}), 0), space}
                  : GrammarSequence{space}});
  for (auto each = listed.rbegin(); each != listed.rend(); ++each) {
    const GrammarSequence written = grammar_.text(each->name) + json_.colon() +
                                    GrammarSequence{ByteGrammar::rule(each->value), ByteGrammar::rule(some)};
    std::vector<GrammarSequence> first = {written}, further = {json_.comma() + written};
    if (!each->is_required) {
      first.push_back({ByteGrammar::rule(none)});
      further.push_back({ByteGrammar::rule(some)});
    }
    none = grammar_.add(std::move(first));
    some = grammar_.add(std::move(further));
  }
  return none;
}

}  // namespace teratron
