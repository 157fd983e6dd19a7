// Reads the fields of a JSON object from outside, and collects all that is wrong with them.
//
//   RequestFields fields(value, where);
//   fields.integer("n", [&](int64_t n) { ... });
//   fields.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

/// A field that is absent or null is left alone, known or not.
class RequestFields {
 public:
  static constexpr size_t most_problems = 10;  // that are reported; a request may have millions

  /// `value`: an object, which must outlive this. `where` is that of the problems; empty: the field's name.
  RequestFields(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {}

  /// `type` says what `valid` accepts: "an integer".
  template <typename T, typename Valid>
  void read(const char* name, const char* type, const Valid& valid,
            const std::function<void(const T&)>& use) {
    const nlohmann::json* const found = find(name);
    if (!found) return;
    if (!valid(*found)) return wrong_type(name, type, *found);
    if constexpr (std::is_same_v<T, nlohmann::json>) {
      use(*found);  // it may be long, and stays where it is
    } else {
      use(found->template get<T>());
    }
  }
  void integer(const char* name, const std::function<void(const int64_t&)>& use);
  void real(const char* name, double& target);
  void flag(const char* name, bool& target);
  void text(const char* name, const std::function<void(const std::string&)>& use);
  /// A text or a list of texts.
  void texts(const char* name, std::vector<std::string>& target);
  // Fields that have no effect:
  void ignore_flag(const char* name);
  void ignore_text(const char* name);
  void ignore_object(const char* name);
  /// A field that is not supported unless it is null or one of the values that change nothing.
  void unsupported(const char* name, const std::vector<nlohmann::json>& neutral, std::string fix);

  /// Whether it is there, with whatever value but null.
  bool has(const char* name) const;
  void problem(const std::string& name, std::string what, std::string fix);
  /// Whether further problems would not be reported.
  bool is_full() const { return problems_.size() >= most_problems; }
  /// Adds the problems of the object in a field, unknown fields among them.
  void add_problems_of(RequestFields part);
  /// UserError(data) with all problems, unknown fields among them.
  void finish();

  static bool is_int64(const nlohmann::json& v);
  static bool is_id(const nlohmann::json& v);  // of a token
  static bool are_texts(const nlohmann::json& v);
  static bool are_ids(const nlohmann::json& v);

 private:
  const nlohmann::json* find(const char* name);
  void check_unknown();
  void wrong_type(const char* name, const char* type, const nlohmann::json& value);

  const nlohmann::json& value_;
  std::string where_;
  std::vector<std::string> known_;
  std::vector<Problem> problems_;
};

}  // namespace teratron
