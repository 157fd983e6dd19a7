// What the parsers of requests know of the model that is served.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "teratron/generate/request.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct ServedModel {
  const Tokenizer& tokenizer;
  std::string name;
  std::vector<std::string> adapters =
      {};  // names of the model with LoRA adapters (GenerationRequest::adapter)
  RequestLimits limits = {};
  int32_t document_end = -1;             // id; -1: none
  std::vector<int32_t> end_tokens = {};  // any of them ends an answer
  int64_t max_request_tokens = 0;        // of prompts and answers together; 0: no limit
  size_t max_prompts = 2048;             // of a request
  SamplingOptions sampling = {};         // defaults of OpenAI's requests, of generation_config.json
  bool lenient_errors = true;            // status 200 for the errors of /api, as Megatron-LM
};

/// Tokens of prompts and answers of a whole request.
int64_t total_tokens(const std::vector<GenerationRequest>& requests);

/// Which of the names a request means, as GenerationRequest::adapter; ApiError 404 with the names there are.
int64_t adapter_named(const std::string& name, const ServedModel& model);

/// A seed for a request that has none.
uint64_t random_seed();

}  // namespace teratron
