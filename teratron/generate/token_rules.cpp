#include "teratron/generate/token_rules.h"

#include <algorithm>

namespace teratron {

namespace {

// The texts that are special tokens: "<|im_end|>".
std::vector<int32_t> special_tokens_of(const std::vector<std::string>& texts, const Tokenizer& tokenizer) {
  std::vector<int32_t> found, ids;
  for (const std::string& text : texts) {
    ids.clear();
    try {
      tokenizer.encode(text, ids);
    } catch (const UserError&) {
      continue;  // its vocabulary has no such words
    }
    if (ids.size() == 1 && tokenizer.is_special(ids[0])) found.push_back(ids[0]);
  }
  return found;
}

}  // namespace

StepChoice TokenRules::choice(const GenerationRequest& request, const Sequence& sequence) const {
  if (request.searches()) return {.best = 2 * request.beams.width};
  const uint64_t draw = ((request.sequence + sequence.index) << 32U) + sequence.tokens.size();
  const bool after_colon = request.prevent_newline_after_colon && sequence.tokens.back() == newlines_.colon;
  const bool greedy = request.sampling.temperature < least_temperature;
  LogitEdits edits = edits_of(request.sampling, sequence.tokens, request.prompt.size());
  if (AnswerProgress& progress = sequence.progress; progress.constraint)
    edits.allowed = progress.constraint->allowed(progress.place, request.stop.tokens);
  const bool joint = edits.top_k > 0;  // both filters are among the edits
  const RowSampling sampling{.temperature = greedy ? 1.0 : request.sampling.temperature,
                             .top_k = greedy  ? 1
                                      : joint ? 0
                                              : request.sampling.top_k,
                             .top_p = joint ? 0.0 : sequence.top_p,
                             .uniform = uniform_of(request.sampling.seed, draw),
                             .banned = after_colon ? newlines_.newline : -1};
  RowSampling following = sampling;
  following.top_p = decayed_top_p(sequence.top_p, request.sampling);
  following.uniform = uniform_of(request.sampling.seed, draw + 1);
  return {.sampling = sampling, .following = following, .edits = std::move(edits)};
}

AnswerProgress TokenRules::begin(const GenerationRequest& request) {
  AnswerProgress progress{.constraint = constraints_.of(request.form)};
  if (request.stop.texts.empty()) return progress;
  progress.text.emplace(*tokenizer_, request.prompt, request.skip_special_tokens);
  if (request.skip_special_tokens)
    progress.special_stops = special_tokens_of(request.stop.texts, *tokenizer_);
  return progress;
}

bool TokenRules::is_stop(const StopRules& stop, int32_t before, int32_t token,
                         AnswerProgress& progress) const {
  const bool one = token == newlines_.newline, two = token == newlines_.double_newline;
  if (stop.on_double_eol) {
    if (two || (one && before == newlines_.newline)) return true;
  } else if (stop.on_eol) {
    if (one || two) return true;
  } else if (ends_at_token(stop, token)) {
    return true;
  }
  if (std::ranges::find(progress.special_stops, token) != progress.special_stops.end()) return true;
  if (progress.constraint) {
    progress.constraint->advance(progress.place, token);
    if (progress.constraint->is_complete(progress.place)) return true;
  }
  std::optional<AnswerText>& text = progress.text;
  if (!text) return false;
  // A text that ends here begins among the last bytes.
  size_t longest = 0;
  for (const std::string& each : stop.texts) longest = std::max(longest, each.size());
  const size_t certain = text->certain().size();
  text->add(token);
  const std::string tail = text->whole(certain - std::min(certain, longest));
  return std::ranges::any_of(stop.texts,
                             [&](const std::string& each) { return tail.find(each) != std::string::npos; });
}

}  // namespace teratron
