// POST /tokenize and POST /detokenize, as vLLM has them.
#pragma once

#include <nlohmann/json.hpp>

#include "teratron/serve/api/served_model.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

/// {"prompt": "..."} or {"messages": [...], "add_generation_prompt": true} -> count, max_model_len and
/// tokens. `chat`: null without a template. Throws ApiError.
nlohmann::ordered_json tokenize_answer(const nlohmann::json& body, const ServedModel& model,
                                       const ChatTemplate* chat);
/// {"tokens": [1, 2]} -> prompt. Throws ApiError.
nlohmann::ordered_json detokenize_answer(const nlohmann::json& body, const ServedModel& model);

}  // namespace teratron
