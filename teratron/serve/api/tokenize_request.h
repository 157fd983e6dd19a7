// POST /tokenize and POST /detokenize, as vLLM has them.
#pragma once

#include "teratron/serve/api/request_body.h"
#include "teratron/serve/api/served_model.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

/// {"prompt": "..."} or {"messages": [...], "tools": [...], "add_generation_prompt": true} -> count,
/// max_model_len and tokens. `chat`: null without a template. Throws ApiError.
nlohmann::ordered_json tokenize_answer(const RequestBody& body, const ServedModel& model,
                                       const ChatTemplate* chat);
/// {"tokens": [1, 2]} -> prompt. Throws ApiError.
nlohmann::ordered_json detokenize_answer(const RequestBody& body, const ServedModel& model);

}  // namespace teratron
