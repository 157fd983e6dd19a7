// How OpenAI's and vLLM's fields choose tokens.
#pragma once

#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/served_model.h"

namespace teratron {

/// temperature, top_p, top_k, min_p, seed, penalties and logit_bias, with the model's defaults. The fields'
/// values for "off" are the engine's zeros. Returns whether a seed is named.
bool read_openai_sampling(RequestFields& fields, const ServedModel& model, GenerationRequest& request);

}  // namespace teratron
