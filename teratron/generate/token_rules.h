// How the next token of a sequence is chosen, and which tokens end it.
#pragma once

#include <optional>
#include <span>

#include "teratron/generate/request.h"
#include "teratron/generate/step.h"
#include "teratron/generate/texts.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

class TokenRules {
 public:
  /// `tokenizer` decodes the ends of answers; may be null if no request stops at a text.
  TokenRules(const NewlineTokens& newlines, const Tokenizer* tokenizer)
      : newlines_(newlines), tokenizer_(tokenizer) {}

  /// One of the sequences of a request.
  struct Sequence {
    size_t index = 0;                 // among those of the request
    std::span<const int32_t> tokens;  // prompt and new ones
    double top_p = 0.0;               // of the next token
  };
  /// For the token after these; StepChoice::token is left open.
  StepChoice choice(const GenerationRequest& request, const Sequence& sequence) const;
  /// What is_stop() keeps of a sequence's text; nullopt if the request stops at no text.
  std::optional<AnswerText> text_of(const GenerationRequest& request) const;
  /// Whether a token ends its sequence, in which it follows `before` (-1: none). Adds it to the text.
  bool is_stop(const StopRules& stop, int32_t before, int32_t token, std::optional<AnswerText>& text) const;

 private:
  NewlineTokens newlines_;
  const Tokenizer* tokenizer_;
};

}  // namespace teratron
