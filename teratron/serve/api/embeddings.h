// POST /v1/embeddings: OpenAI's fields. The embedding of a text is the mean of the model's last states, those
// behind the final norm, over its tokens; it is not scaled to length 1.
#pragma once

#include <string>
#include <vector>

#include "teratron/serve/api/request_body.h"
#include "teratron/serve/api/served_model.h"

namespace teratron {

struct EmbeddingsRequest {
  std::vector<GenerationRequest> inputs;
  std::string model;
  bool base64 = false;  // of fp32, in place of a list of numbers
};

/// Throws ApiError with all that is wrong with the fields.
EmbeddingsRequest parse_embeddings(const RequestBody& body, const ServedModel& model);
nlohmann::ordered_json embeddings_answer(const EmbeddingsRequest& request,
                                         const std::vector<GenerationResult>& results);

}  // namespace teratron
