#include "teratron/generate/memory/request_needs.h"

#include <algorithm>

#include "teratron/generate/memory/beam_pages.h"

namespace teratron {

int64_t new_tokens_of(const GenerationRequest& request, int64_t max_positions) {
  const int64_t left = max_positions - static_cast<int64_t>(request.prompt.size());
  return std::clamp<int64_t>(left, 0, request.max_new_tokens);
}

RequestNeeds needs_of(const GenerationRequest& request, int64_t max_positions, int64_t page_size) {
  const auto pages_for = [page_size](int64_t tokens) { return (tokens + page_size - 1) / page_size; };
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t new_tokens = new_tokens_of(request, max_positions);
  RequestNeeds needs{.rows = request.searches() ? request.beams.width : request.choices,
                     .source_pages = pages_for(static_cast<int64_t>(request.source.size()))};
  if (request.searches()) {
    needs.pages = needs.source_pages + BeamPages::needed(prompt, new_tokens, request.beams.width, page_size);
    return needs;
  }
  // A prompt that is only scored needs no place for its last token.
  const int64_t cached =
      request.max_new_tokens > 0 || request.embeds ? prompt + new_tokens : std::max<int64_t>(prompt - 1, 1);
  needs.pages = needs.source_pages + request.choices * pages_for(cached);
  return needs;
}

}  // namespace teratron
