#include "teratron/serve/api/api_error.h"

#include <algorithm>
#include <span>

#include "teratron/base/json.h"
#include "teratron/generate/json/request_fields.h"

namespace teratron {

namespace {

// Problems of the engine name flags and fields of `teratron generate` where requests have other fields.
std::string field_of(std::string where) {
  if (where.starts_with("--")) where.erase(0, 2);
  std::replace(where.begin(), where.end(), '-', '_');
  constexpr std::pair<std::string_view, std::string_view> others[] = {
      {"max_new_tokens", "max_tokens"}, {"num_return_sequences", "n"}, {"tokens", "prompt"}};
  for (const auto& [name, field] : others) {
    if (where == name) return std::string(field);
  }
  return where;
}

bool is_of_server(std::string_view flag) {
  return flag.starts_with("--inference");
}

// "--top-k 5" as "top_k 5"; flags of the server stay.
std::string with_fields(const std::string& text) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz-";
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const bool is_flag = text.compare(i, 2, "--") == 0 && text.find_first_of(letters, i + 2) == i + 2;
    const size_t end = is_flag ? std::min(text.find_first_not_of(letters, i), text.size()) : i + 1;
    const std::string part = text.substr(i, end - i);
    result += is_flag && !is_of_server(part) ? field_of(part) : part;
    i = end;
  }
  return result;
}

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

nlohmann::ordered_json ApiError::to_json() const {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return {{"error",
           {{"message", what()},
            {"type", type_of(status_)},
            {"param", or_null(details_.param)},
            {"code", or_null(details_.code)}}}};
}

ApiError api_error(const UserError& error) {
  std::string message;
  const size_t count = std::min(error.problems().size(), RequestFields::most_problems);
  for (const Problem& problem : std::span(error.problems()).first(count)) {
    const std::string field = field_of(problem.where);
    const std::string what = with_fields(problem.what);
    const bool is_named = what.find(field) != std::string::npos;
    message += fmt::format("{}{}{}. {}", message.empty() ? "" : "; ", is_named ? "" : field + ": ", what,
                           with_fields(problem.fix));
  }
  const Problem first = error.problems().empty() ? Problem{} : error.problems().front();
  return ApiError(400, message, {.param = field_of(first.where)});
}

nlohmann::json parse_body(const std::string& body) {
  nlohmann::json value;
  try {
    value = parse_json(body, {.where = "", .kind = ExitCode::data});
  } catch (const UserError& error) {
    const Problem& problem = error.problems().front();
    throw ApiError(400, fmt::format("line {}: {}", problem.where, problem.what), {.code = "invalid_json"});
  }
  if (!value.is_object()) throw ApiError(400, "the request is not a JSON object", {.code = "invalid_json"});
  return value;
}

}  // namespace teratron
