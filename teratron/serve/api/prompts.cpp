#include "teratron/serve/api/prompts.h"

#include <algorithm>

namespace teratron {

namespace {

using nlohmann::json;

bool is_prompt(const json& value) {
  return value.is_string() || (RequestFields::are_ids(value) && !value.empty());
}

bool are_prompts(const json& value) {
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_prompt) &&
         (RequestFields::are_texts(value) || std::all_of(value.begin(), value.end(), RequestFields::are_ids));
}

}  // namespace

std::vector<const json*> read_prompts(RequestFields& fields, const char* field, const ServedModel& model) {
  std::vector<const json*> prompts;
  if (!fields.has(field))
    fields.problem(field, fmt::format("there is no {}", field), "Add a text or a list of token ids");
  fields.read<json>(
      field, "a text, a list of texts, a list of token ids or a list of such lists",
      [](const json& v) { return is_prompt(v) || are_prompts(v); },
      [&](const json& v) {
        if (is_prompt(v)) return prompts.push_back(&v);
        if (v.size() > model.max_prompts) {
          return fields.problem(field, fmt::format("{} texts in one request", v.size()),
                                fmt::format("Send at most {} at once", model.max_prompts));
        }
        for (const json& each : v) prompts.push_back(&each);
      });
  return prompts;
}

std::vector<int32_t> prompt_ids(const json& prompt, const ServedModel& model) {
  if (prompt.is_array()) return prompt.get<std::vector<int32_t>>();
  std::vector<int32_t> ids;
  model.tokenizer.encode(prompt.get<std::string>(), ids);
  if (ids.empty() && model.document_end >= 0) ids.push_back(model.document_end);
  return ids;
}

}  // namespace teratron
