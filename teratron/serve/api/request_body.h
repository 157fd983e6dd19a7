// The JSON of a request.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace teratron {

class RequestBody {
 public:
  /// ApiError 400 if the text is not a JSON object.
  explicit RequestBody(std::string text);
  RequestBody(nlohmann::json fields) : fields_(std::move(fields)) {}

  const nlohmann::json& fields() const { return fields_; }
  /// A member whose own members are in the order in which they came, which prompts and answers show; null if
  /// it is absent. UserError(data) for an object of more than 10000.
  const nlohmann::ordered_json& ordered(const char* name) const;

 private:
  std::string text_;  // empty: that of the fields
  nlohmann::json fields_;
  mutable std::optional<nlohmann::ordered_json> ordered_;
};

}  // namespace teratron
