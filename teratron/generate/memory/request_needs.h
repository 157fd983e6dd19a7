// What a request takes of the engine's memory while it is answered.
#pragma once

#include "teratron/generate/request.h"

namespace teratron {

struct RequestNeeds {
  int64_t rows = 1;          // sequences at once
  int64_t pages = 0;         // of all of them
  int64_t source_pages = 0;  // of these, for an encoder's tokens
};

/// New tokens of each answer, which ends at the model's last position.
int64_t new_tokens_of(const GenerationRequest& request, int64_t max_positions);

RequestNeeds needs_of(const GenerationRequest& request, int64_t max_positions, int64_t page_size);

}  // namespace teratron
