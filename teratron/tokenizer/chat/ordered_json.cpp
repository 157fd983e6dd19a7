#include "teratron/tokenizer/chat/ordered_json.h"

#include <algorithm>

namespace teratron {

namespace {

constexpr size_t most_members = 10000;

bool has_large_object(const nlohmann::json& value) {
  if (value.is_object() && value.size() > most_members) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_large_object);
}

}  // namespace

nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonOptions& options) {
  if (has_large_object(parse_json(text, options))) {
    throw UserError(options.kind, {{.what = fmt::format("an object has more than {} members", most_members),
                                    .where = options.where}});
  }
  return nlohmann::ordered_json::parse(text);
}

}  // namespace teratron
