// What an endpoint answers instead of a result.
#pragma once

#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

struct ApiErrorDetails {
  std::string param = {};  // the field that is wrong
  std::string code = {};   // for programs: "context_length_exceeded"
  int retry_after = 0;     // seconds; 0: a repetition does not help
};

class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, ApiErrorDetails details = {})
      : std::runtime_error(message), status_(status), details_(std::move(details)) {}
  int status() const { return status_; }
  const ApiErrorDetails& details() const { return details_; }
  /// OpenAI's: {"error": {"message", "type", "param", "code"}}.
  nlohmann::ordered_json to_json() const;

 private:
  int status_;
  ApiErrorDetails details_;
};

/// Status 400 with what is wrong with a request, ten problems at most.
ApiError api_error(const UserError& error);

/// A JSON object; ApiError 400.
nlohmann::json parse_body(const std::string& body);

}  // namespace teratron
