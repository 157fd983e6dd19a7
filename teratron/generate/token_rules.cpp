#include "teratron/generate/token_rules.h"

#include <algorithm>

namespace teratron {

StepChoice TokenRules::choice(const GenerationRequest& request, const Sequence& sequence) const {
  if (request.beams.width > 0) return {.best = 2 * request.beams.width};
  const uint64_t draw = ((request.sequence + sequence.index) << 32U) + sequence.tokens.size();
  const bool after_colon = request.prevent_newline_after_colon && sequence.tokens.back() == newlines_.colon;
  const RowSampling sampling{.temperature = request.sampling.temperature,
                             .top_k = request.sampling.top_k,
                             .top_p = sequence.top_p,
                             .uniform = uniform_of(request.sampling.seed, draw),
                             .banned = after_colon ? newlines_.newline : -1};
  RowSampling following = sampling;
  following.top_p = decayed_top_p(sequence.top_p, request.sampling);
  following.uniform = uniform_of(request.sampling.seed, draw + 1);
  return {.sampling = sampling, .following = following};
}

bool TokenRules::is_stop(const GenerationRequest& request, std::span<const int32_t> tokens) const {
  const StopRules& stop = request.stop;
  const int32_t token = tokens.back();
  const int32_t before = tokens.size() > 1 ? tokens[tokens.size() - 2] : -1;
  if (stop.on_double_eol) {
    if (token == newlines_.double_newline || (token == newlines_.newline && before == newlines_.newline))
      return true;
  } else if (stop.on_eol) {
    if (token == newlines_.double_newline || token == newlines_.newline) return true;
  } else if (std::find(stop.tokens.begin(), stop.tokens.end(), token) != stop.tokens.end()) {
    return true;
  }
  if (stop.texts.empty()) return false;
  // The text ends with the newest token, so it begins among the last tokens.
  size_t longest = 0;
  for (const std::string& text : stop.texts) longest = std::max(longest, text.size());
  const size_t answer = tokens.size() - request.prompt.size();
  const std::string tail = tokenizer_->decode(tokens.last(std::min(answer, longest + 8)));
  return std::any_of(stop.texts.begin(), stop.texts.end(),
                     [&](const std::string& text) { return tail.find(text) != std::string::npos; });
}

}  // namespace teratron
