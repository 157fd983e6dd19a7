// How the next token of a sequence is chosen, and which tokens end it.
#pragma once

#include <span>

#include "teratron/generate/request.h"
#include "teratron/generate/step.h"
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
  /// Whether the newest of the sequence's tokens ends it.
  bool is_stop(const GenerationRequest& request, std::span<const int32_t> tokens) const;

 private:
  NewlineTokens newlines_;
  const Tokenizer* tokenizer_;
};

}  // namespace teratron
