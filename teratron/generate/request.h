// What is asked of the engine (engine.h), and its answer. The rules are those of Megatron-LM's
// text_generation, for each prompt as if it were alone: an answer depends on the prompt, the options and the
// seed, not on other requests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/generate/grammar/answer_form.h"
#include "teratron/generate/options/sampling_options.h"
#include "teratron/models/image_tokens.h"

namespace teratron {

/// When an answer ends before max_new_tokens. A beam whose answer ends is a finished hypothesis.
struct StopRules {
  std::vector<int32_t> tokens;     // any of them; part of the answer's tokens (of no beam's), not of its text
  std::vector<std::string> texts;  // any of them, also across the borders of tokens; not part of the text
  bool on_eol = false;             // at a newline; `tokens` do not count then
  bool on_double_eol = false;      // at two newlines; the same
};

struct BeamOptions {
  int64_t width = 0;  // 0: no beam search
  double length_penalty = 1.0;
};

inline constexpr int64_t largest_top_logprobs = 20;

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0.0;
};

/// A token of an answer, as it is generated.
struct GeneratedToken {
  int32_t id = 0;
  double logprob = 0.0;           // if asked
  std::vector<TokenLogprob> top;  // if asked
  std::string finish_reason;      // of the answer's last token; else empty
};

/// The images of a prompt, one after another.
struct RequestImages {
  std::vector<float> values;  // pixel values, as the model takes them
  int64_t count = 0;
};

struct GenerationRequest {
  /// With an encoder: the decoder's first tokens. Each row of an image is an image token.
  std::vector<int32_t> prompt;
  std::shared_ptr<const RequestImages> images = nullptr;  // null: none
  std::vector<int32_t> source = {};                       // of a model with an encoder
  int64_t max_new_tokens = 64;                            // 0: only log probabilities of the prompt
  SamplingOptions sampling = {};
  StopRules stop = {};
  BeamOptions beams = {};
  AnswerForm form = {};  // of answers; an answer ends once it is complete
  bool prevent_newline_after_colon = false;
  bool skip_special_tokens = true;  // leave them out of the texts of answers
  int64_t choices = 1;              // answers; with beams the best ones
  uint64_t sequence = 0;            // the first answer's number among those of one seed
  bool logprobs = false;
  int64_t logprobs_from = 1;  // the first token of the prompt whose log probability is asked for
  int64_t top_logprobs = 0;   // with each of them those of so many of the most probable tokens
  bool embeds = false;        // the mean of the prompt's last states, and no answer (max_new_tokens 0)
  int64_t adapter = 0;        // EngineSettings::adapters from 1 on; 0: the model itself
  /// Called with each new token of answer `choice`, not during a beam search; may be empty.
  std::function<void(int64_t choice, const GeneratedToken& token)> on_token = {};

  /// A prompt that is only scored has no beams.
  bool searches() const { return beams.width > 0 && max_new_tokens > 0; }
};

struct GeneratedChoice {
  std::vector<int32_t> tokens;  // new ones
  std::string finish_reason;    // "stop", "length" or "cancelled"
  std::vector<double>
      logprobs;  // if asked: of the prompt's tokens from logprobs_from on, then of the new ones
  std::vector<std::vector<TokenLogprob>> top;  // if asked: of each of them, the most probable tokens there
  double score = 0.0;                          // of a beam
  std::vector<double> embedding = {};          // if asked
};

struct GenerationResult {
  int64_t id = 0;
  std::vector<GeneratedChoice> choices;
};

/// Ids of the tokens that the rules on newlines are about; -1: the tokenizer has none.
struct NewlineTokens {
  int32_t newline = 198, double_newline = 628, colon = 25;  // GPT-2's
};

/// Most sequences of one request where nothing else limits them.
inline constexpr int64_t most_request_rows = 256;

struct RequestLimits {
  int64_t vocabulary = 0;
  int64_t max_positions = 0;
  int64_t max_rows = 0;    // sequences of one request
  int64_t max_tokens = 0;  // that the cache holds
  bool has_tokenizer = false;
  bool has_source = false;                   // that an encoder reads
  std::optional<ImageTokens> images = {};    // of prompts
  std::string_view more_rows = "Use fewer";  // how a request gets more rows
};
/// All that is wrong with a request, named by its fields.
std::vector<Problem> request_problems(const GenerationRequest& request, const RequestLimits& limits);

/// For the other ranks of a job; without callbacks.
std::string serialize(const GenerationRequest& request);
GenerationRequest deserialize_request(const std::string& text);

}  // namespace teratron
