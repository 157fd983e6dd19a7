#include "teratron/serve/api/served_model.h"

#include <random>

namespace teratron {

int64_t total_tokens(const std::vector<GenerationRequest>& requests) {
  int64_t tokens = 0;
  for (const GenerationRequest& request : requests) {
    const int64_t answers = std::max<int64_t>(1, std::max(request.choices, request.beams.width));
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    int64_t each = 0;
    const bool fits = !__builtin_add_overflow(prompt, request.max_new_tokens, &each) &&
                      !__builtin_mul_overflow(each, answers, &each) &&
                      !__builtin_add_overflow(tokens, each, &tokens);
    if (!fits) return std::numeric_limits<int64_t>::max();
  }
  return tokens;
}

uint64_t random_seed() {
  std::random_device source;
  return (uint64_t{source()} << 31U) ^ source();
}

}  // namespace teratron
