// How the engine's next tokens are chosen, and which of them end a text.
#include <algorithm>

#include "teratron/generate/engine_state.h"

namespace teratron {

StepChoice Engine::next_choice(const Active& active, const Sequence& sequence, int64_t token) const {
  const GenerationRequest& request = active.request;
  if (active.has_beams()) return {.token = token, .best = 2 * request.beams.width};
  const auto index = static_cast<uint64_t>(&sequence - active.sequences.data());
  const uint64_t draw = ((request.sequence + index) << 32U) + static_cast<uint64_t>(sequence.tokens.size());
  const bool after_colon =
      request.prevent_newline_after_colon && sequence.tokens.back() == settings_.newlines.colon;
  const RowSampling sampling{.temperature = request.sampling.temperature,
                             .top_k = request.sampling.top_k,
                             .top_p = sequence.top_p,
                             .uniform = uniform_of(request.sampling.seed, draw),
                             .banned = after_colon ? settings_.newlines.newline : -1};
  RowSampling following = sampling;
  following.top_p = decayed_top_p(sequence.top_p, request.sampling);
  following.uniform = uniform_of(request.sampling.seed, draw + 1);
  return {.token = token, .sampling = sampling, .following = following};
}

// Unless a stop ends a sequence, the next step has the same rows: no prompt is read, none can join, none is
// complete, and how a token is chosen does not depend on the one before.
bool Engine::continues(const Plan& plan) const {
  if (!waiting_.empty()) return false;
  return std::all_of(plan.entries.begin(), plan.entries.end(), [&](const Plan::Entry& entry) {
    const Active& active = *entry.active;
    const int64_t new_tokens = entry.sequence->length() - active.prompt();
    return entry.chooses && !active.has_beams() && !active.request.prevent_newline_after_colon &&
           entry.sequence->length() - entry.sequence->cached == 1 &&
           new_tokens + 1 < active.request.max_new_tokens;
  });
}

bool Engine::is_stop(const GenerationRequest& request, const Sequence& sequence) const {
  const StopRules& stop = request.stop;
  const NewlineTokens& ids = settings_.newlines;
  const int32_t token = sequence.tokens.back();
  const int32_t before = sequence.tokens.size() > 1 ? sequence.tokens[sequence.tokens.size() - 2] : -1;
  if (stop.on_double_eol) {
    if (token == ids.double_newline || (token == ids.newline && before == ids.newline)) return true;
  } else if (stop.on_eol) {
    if (token == ids.double_newline || token == ids.newline) return true;
  } else if (std::find(stop.tokens.begin(), stop.tokens.end(), token) != stop.tokens.end()) {
    return true;
  }
  if (stop.texts.empty()) return false;
  // The text ends with the newest token, so it begins among the last tokens.
  size_t longest = 0;
  for (const std::string& text : stop.texts) longest = std::max(longest, text.size());
  const size_t answer = sequence.tokens.size() - request.prompt.size();
  const std::span<const int32_t> all(sequence.tokens);
  const std::string tail = settings_.tokenizer->decode(all.last(std::min(answer, longest + 8)));
  return std::any_of(stop.texts.begin(), stop.texts.end(),
                     [&](const std::string& text) { return tail.find(text) != std::string::npos; });
}

}  // namespace teratron
