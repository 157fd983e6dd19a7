#include "teratron/tokenizer/hf/json_fields.h"

#include <unordered_set>

#include "teratron/base/error.h"

namespace teratron {

void JsonFields::reject(std::string what, std::string fix) const {
  throw data_error({.what = std::move(what), .where = path_, .fix = std::move(fix)});
}

void JsonFields::unsupported(std::string_view part, std::string_view type) const {
  reject(fmt::format("the {} '{}' is not supported", part, printable(type)),
         "use a BPE (GPT-2, Llama, Qwen, Mistral), Unigram (T5) or WordPiece (BERT) tokenizer");
}

JsonFields::Object JsonFields::large_object(Element value, std::string_view name) const {
  Object result;
  if (value.get(result)) reject(fmt::format("'{}' is not an object", name));
  return result;
}

JsonFields::Object JsonFields::object(Element value, std::string_view name) const {
  const Object result = large_object(value, name);
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, ignored] : result) {
    if (!keys.insert(key).second)
      reject(fmt::format("the key '{}' appears twice in '{}'", printable(key), name));
  }
  return result;
}

std::optional<JsonFields::Element> JsonFields::field(Object from, std::string_view key) {
  Element value;
  if (from.at_key(key).get(value) || value.is_null()) return std::nullopt;
  return value;
}

JsonFields::Element JsonFields::require(Object from, std::string_view key) const {
  const auto value = field(from, key);
  if (!value) reject(fmt::format("'{}' is missing", key));
  return *value;
}

JsonFields::Array JsonFields::require_array(Object from, std::string_view key) const {
  Array result;
  if (require(from, key).get(result)) reject(fmt::format("'{}' is not an array", key));
  return result;
}

std::string JsonFields::string(Element value, std::string_view name) const {
  std::string_view result;
  if (value.get(result)) reject(fmt::format("'{}' is not a string", name));
  return std::string(result);
}

std::string JsonFields::require_string(Object from, std::string_view key) const {
  return string(require(from, key), key);
}

bool JsonFields::boolean(Object from, std::string_view key, bool fallback) const {
  const auto value = field(from, key);
  bool result = fallback;
  if (value && value->get(result)) reject(fmt::format("'{}' is not a boolean", key));
  return result;
}

int32_t JsonFields::id(Element value, std::string_view name) const {
  int64_t result = -1;
  if (value.get(result) || result < 0 || result > INT32_MAX)
    reject(fmt::format("'{}' is not an id", printable(name)));
  return static_cast<int32_t>(result);
}

}  // namespace teratron
