// POST /v1/completions and POST /v1/chat/completions: OpenAI's fields, and some of vLLM's.
//
// Sampling: temperature, top_p after top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty
// and logit_bias; log probabilities are those without them. Where they differ from OpenAI's: `seed` makes a
// text depend on nothing else. Answers in JSON: response_format.h; calls of functions: chat_tools.h. What is
// not supported is refused unless its value changes nothing, which clients send unasked. Unknown fields are
// errors. null is as if the field were absent.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/serve/api/request_body.h"
#include "teratron/serve/api/served_model.h"
#include "teratron/serve/api/tool_call_stream.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

struct OpenAiRequest {
  std::vector<GenerationRequest> prompts;  // one of a chat
  std::vector<std::string> echoes;         // the texts of the prompts that precede the answers; or empty
  std::string model = {};                  // the name in the answer
  bool is_chat = false;
  bool logprobs = false;  // in the answer
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;                         // in a stream
  std::optional<ToolCallStream::Options> calls = {};  // of functions that an answer may have
};

/// Throws ApiError with all that is wrong with the fields.
OpenAiRequest parse_completion(const RequestBody& body, const ServedModel& model);
OpenAiRequest parse_chat(const RequestBody& body, const ServedModel& model, const ChatTemplate& chat);

}  // namespace teratron
