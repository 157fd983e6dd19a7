// PUT /api, as Megatron-LM's text generation server: its fields, checks, texts and answers.
//
//   {"prompts": ["..."], "tokens_to_generate": 64, "logprobs": false, "temperature": 1.0, "top_k": 0,
//    "top_p": 0.0, "top_p_decay": 0.0, "top_p_bound": 0.0, "add_BOS": false, "stop_on_double_eol": false,
//    "stop_on_eol": false, "prevent_newline_after_colon": false, "random_seed": -1, "no_log": false,
//    "beam_width": null, "stop_token": EOD, "length_penalty": 1.0}
//
// Megatron-LM answers most errors with status 200 and a JSON string.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/serve/api/served_model.h"

namespace teratron {

/// The text of an error, and the status that Megatron-LM answers it with.
struct MegatronError {
  int status = 400;
  std::string text;
};

struct MegatronRequest {
  std::vector<GenerationRequest> prompts;
  bool logs = true;
};

/// Throws MegatronError. Other fields are ignored, as there.
MegatronRequest parse_megatron(const nlohmann::json& body, const ServedModel& model);

/// {"text", "segments", "logprobs"}, of a beam search {"text", "segments", "scores"} with the whole beam.
/// Texts include the prompt, and the token that ended them.
nlohmann::ordered_json megatron_answer(const MegatronRequest& request,
                                       const std::vector<GenerationResult>& results,
                                       const ServedModel& model);

}  // namespace teratron
