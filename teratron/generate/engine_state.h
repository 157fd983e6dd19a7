// What the engine keeps of the requests that it answers.
#pragma once

#include <algorithm>

#include "teratron/generate/engine.h"

namespace teratron {

/// The most probable tokens that a step finds for it. Few values, since each is a CUDA graph.
inline int64_t top_of(const GenerationRequest& request) {
  return request.logprobs && request.top_logprobs > 0 ? largest_top_logprobs : 0;
}

struct Engine::Sequence {
  std::vector<int32_t> tokens;  // prompt and new ones
  int64_t cached = 0;           // tokens that the layers' states have seen
  std::vector<int32_t> pages;
  int32_t slot = 0;
  double top_p = 0.0;
  AnswerProgress progress = {};
  std::vector<double> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  std::vector<double> state_sums = {};  // of the prompt's tokens, if it is embedded
  const char* finish_reason = nullptr;  // null: not finished

  /// `tokens`: the token of the answer or the prompt, then the most probable ones, of which `count` are kept.
  void add_logprobs(const std::vector<StepOutput::Token>& tokens, int64_t count) {
    logprobs.push_back(tokens.front().logprob);
    if (count == 0) return;
    const size_t end = std::min<size_t>(static_cast<size_t>(count) + 1, tokens.size());
    std::vector<TokenLogprob>& kept = top.emplace_back();
    for (size_t i = 1; i < end; ++i) kept.push_back({static_cast<int32_t>(tokens[i].id), tokens[i].logprob});
  }
  void add_states(const std::vector<double>& sums) {
    state_sums.resize(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) state_sums[i] += sums[i];
  }
  std::vector<double> mean_states(int64_t tokens) const {
    std::vector<double> mean = state_sums;
    for (double& each : mean) each /= static_cast<double>(tokens);
    return mean;
  }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

struct Engine::Active {
  int64_t id = 0;
  GenerationRequest request;
  int64_t rows = 0;  // reserved
  std::vector<Sequence> sequences;
  std::vector<int32_t> source_pages;  // of an encoder's tokens, for all sequences
  // State of a beam search.
  BeamPages beam_pages;
  std::optional<BeamHypotheses> hypotheses;
  std::vector<double> scores;
  bool done = false;

  int64_t prompt() const { return static_cast<int64_t>(request.prompt.size()); }
  /// Tokens of the text at most.
  int64_t longest() const { return prompt() + request.max_new_tokens; }
  bool has_beams() const { return request.searches(); }
  /// Tokens that must still run; nothing follows the last one of a prompt that is only scored.
  int64_t left_to_run(const Sequence& sequence) const {
    const bool skips_last = request.max_new_tokens == 0 && sequence.length() > 1 && !request.embeds;
    return sequence.length() - sequence.cached - (skips_last ? 1 : 0);
  }
  /// Says which rows of images the tokens of a row of a step are.
  void add_images(const Sequence& sequence, int64_t image_token, StepRow& row) const {
    const auto first = sequence.tokens.begin() + sequence.cached, end = first + row.tokens;
    row.first_image_row = std::count(sequence.tokens.begin(), first, image_token);
    if (std::find(first, end, image_token) != end) row.images = request.images.get();
  }
  std::vector<int32_t> new_tokens(const Sequence& sequence) const {
    return {sequence.tokens.begin() + prompt(), sequence.tokens.end()};
  }
  /// The new tokens of the hypothesis that a candidate ends; nullopt if it ends none. They exclude a stop
  /// token, as in Megatron-LM.
  std::optional<std::vector<int32_t>> ended(const BeamCandidate& candidate, const TokenRules& rules) const {
    const Sequence& sequence = sequences[candidate.beam];
    AnswerProgress progress = sequence.progress;
    if (!rules.is_stop(request.stop, sequence.tokens.back(), candidate.token, progress)) return std::nullopt;
    std::vector<int32_t> tokens = new_tokens(sequence);
    if (!ends_at_token(request.stop, candidate.token)) tokens.push_back(candidate.token);
    return tokens;
  }
};

struct Engine::Plan {
  struct Entry {
    Active* active;
    Sequence* sequence;
    size_t targets = 0;
    bool chooses = false;
  };
  StepInput step;
  std::vector<Entry> entries;  // of each row
};

}  // namespace teratron
