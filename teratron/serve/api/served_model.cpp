#include "teratron/serve/api/served_model.h"

#include <algorithm>
#include <random>

#include "teratron/serve/api/api_error.h"

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

int64_t adapter_named(const std::string& name, const ServedModel& model) {
  if (name == model.name) return 0;
  const auto found = std::ranges::find(model.adapters, name);
  if (found != model.adapters.end()) return found - model.adapters.begin() + 1;
  std::string names = "'" + model.name + "'";
  for (const std::string& each : model.adapters) names += ", '" + each + "'";
  throw ApiError(404,
                 fmt::format("the model '{}' does not exist; this server has {}", printable(name, 80), names),
                 {.param = "model", .code = "model_not_found"});
}

uint64_t random_seed() {
  std::random_device source;
  return (uint64_t{source()} << 31U) ^ source();
}

}  // namespace teratron
