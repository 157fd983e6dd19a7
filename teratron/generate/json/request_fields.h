// Reads the fields of a JSON object from outside, and collects all that is wrong with them.
//
//   RequestFields fields(value, where);
//   fields.integer("n", [&](int64_t n) { ... });
//   fields.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

/// A field that is absent or null is left alone.
class RequestFields {
 public:
  /// `value`: an object, which must outlive this. `where` is that of the problems; empty: the field's name.
  RequestFields(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {}

  /// `type` says what `valid` accepts: "an integer".
  template <typename T, typename Valid>
  void read(const char* name, const char* type, const Valid& valid,
            const std::function<void(const T&)>& use) {
    if (const nlohmann::json* const found = find(name)) {
      valid(*found) ? use(found->template get<T>()) : wrong_type(name, type, *found);
    }
  }
  void integer(const char* name, const std::function<void(const int64_t&)>& use);
  void real(const char* name, double& target);
  void flag(const char* name, bool& target);
  void text(const char* name, const std::function<void(const std::string&)>& use);
  /// A text or a list of texts.
  void texts(const char* name, std::vector<std::string>& target);
  /// A field that has no effect, whatever its value.
  void ignore(const char* name) { known_.emplace_back(name); }
  /// A field that is not supported unless it is null or one of the values that change nothing.
  void unsupported(const char* name, const std::vector<nlohmann::json>& neutral, std::string fix);

  /// Whether it is there, with whatever value but null.
  bool has(const char* name) const;
  void problem(const std::string& name, std::string what, std::string fix);
  /// UserError(data) with all problems, unknown fields among them.
  void finish();

  static bool is_int64(const nlohmann::json& v);
  static bool is_id(const nlohmann::json& v);  // of a token
  static bool are_texts(const nlohmann::json& v);
  static bool are_ids(const nlohmann::json& v);

 private:
  const nlohmann::json* find(const char* name);
  void wrong_type(const char* name, const char* type, const nlohmann::json& value);

  const nlohmann::json& value_;
  std::string where_;
  std::vector<std::string> known_;
  std::vector<Problem> problems_;
};

}  // namespace teratron
