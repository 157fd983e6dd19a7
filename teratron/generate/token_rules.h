// How the next token of a sequence is chosen, and which tokens end it.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "teratron/generate/request.h"
#include "teratron/generate/step.h"
#include "teratron/generate/texts.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// What is kept of a sequence's text so far.
struct AnswerProgress {
  std::optional<AnswerText> text = {};                // if the request stops at texts
  std::vector<int32_t> special_stops = {};            // special tokens among these, which the text leaves out
  std::shared_ptr<AnswerConstraint> constraint = {};  // if its answer has a form
  AnswerConstraint::Place place = {};
};

class TokenRules {
 public:
  /// `tokenizer` decodes the ends of answers; may be null if no request stops at a text or has a form.
  TokenRules(const NewlineTokens& newlines, const Tokenizer* tokenizer, int64_t vocabulary)
      : newlines_(newlines), tokenizer_(tokenizer), constraints_(tokenizer, vocabulary) {}

  /// One of the sequences of a request.
  struct Sequence {
    size_t index = 0;                 // among those of the request
    std::span<const int32_t> tokens;  // prompt and new ones
    AnswerProgress& progress;
    double top_p = 0.0;  // of the next token
  };
  /// For the token after these; StepChoice::token is left open.
  StepChoice choice(const GenerationRequest& request, const Sequence& sequence) const;
  AnswerProgress begin(const GenerationRequest& request);
  /// Whether a token ends its sequence, in which it follows `before` (-1: none). Adds it to the progress.
  bool is_stop(const StopRules& stop, int32_t before, int32_t token, AnswerProgress& progress) const;
  /// Whether a choice depends on the tokens before it in more than their logits.
  static bool depends_on_tokens(const GenerationRequest& request) {
    return request.prevent_newline_after_colon || edits_logits(request.sampling) || !request.form.empty();
  }
  /// Why answers cannot have the form; thread-safe.
  std::vector<Problem> form_problems(const AnswerForm& form) const { return constraints_.problems(form); }

 private:
  NewlineTokens newlines_;
  const Tokenizer* tokenizer_;
  AnswerConstraints constraints_;
};

}  // namespace teratron
