// Prompts of a request: texts or token ids.
#pragma once

#include <vector>

#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/served_model.h"

namespace teratron {

/// The prompts in a field, one or many; they stay in the request.
std::vector<const nlohmann::json*> read_prompts(RequestFields& fields, const char* field,
                                                const ServedModel& model);
/// Ids of one. An empty text is the end of a document, if the tokenizer has one.
std::vector<int32_t> prompt_ids(const nlohmann::json& prompt, const ServedModel& model);

}  // namespace teratron
