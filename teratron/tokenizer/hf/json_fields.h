// Reads the fields of a JSON file; what is missing or has another type is a UserError(data) with the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <simdjson.h>

namespace teratron {

class JsonFields {
 public:
  using Array = simdjson::dom::array;
  using Element = simdjson::dom::element;
  using Object = simdjson::dom::object;

  explicit JsonFields(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  [[noreturn]] void reject(std::string what, std::string fix = "use the tokenizer's original file") const;
  /// For a part of a tokenizer that the program does not know: "the {part} '{type}' is not supported".
  [[noreturn]] void unsupported(std::string_view part, std::string_view type) const;

  Object object(Element value, std::string_view name) const;
  /// object() without the check that no key appears twice, for large objects that are checked elsewhere.
  Object large_object(Element value, std::string_view name) const;
  /// nullopt if missing or null.
  static std::optional<Element> field(Object from, std::string_view key);
  Element require(Object from, std::string_view key) const;
  Array require_array(Object from, std::string_view key) const;
  std::string string(Element value, std::string_view name) const;
  std::string require_string(Object from, std::string_view key) const;
  bool boolean(Object from, std::string_view key, bool fallback) const;
  /// A token id.
  int32_t id(Element value, std::string_view name) const;

 private:
  std::string path_;
};

}  // namespace teratron
