// Keeps answers in a form: which tokens may follow.
//
//   AnswerConstraints constraints(&tokenizer, vocabulary);
//   std::shared_ptr<AnswerConstraint> constraint = constraints.of(form);
//   AnswerConstraint::Place place;
//   const auto mask = constraint->allowed(place, ends);   // choose a token among them, then
//   constraint->advance(place, token);
//   if (constraint->is_complete(place)) ...               // nothing can follow
//
// What is learned of a form is kept while answers in it are generated.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/generate/grammar/answer_form.h"
#include "teratron/generate/grammar/grammar_states.h"
#include "teratron/generate/grammar/token_bytes.h"

namespace teratron {

/// By id: 1 if the token may follow.
using TokenMask = std::vector<uint8_t>;

class AnswerConstraint {
 public:
  /// How far an answer is; at its beginning.
  class Place {
    friend class AnswerConstraint;
    int32_t state_ = 0;
    uint64_t epoch_ = 0;
    std::string text_;
  };
  /// `tokens` must outlive it.
  AnswerConstraint(AnswerGrammar grammar, const TokenBytes& tokens);

  /// Where the text is complete, `ends` are allowed too.
  std::shared_ptr<const TokenMask> allowed(Place& place, const std::vector<int32_t>& ends);
  /// Tokens that are not allowed leave the place as it is.
  void advance(Place& place, int32_t token);
  /// The answer is complete, and only tokens that end it could follow.
  bool is_complete(Place& place);

 private:
  static constexpr size_t most_states = 50'000, most_masks = 256;

  void reset();
  void find(Place& place);
  int32_t walk(int32_t state, std::string_view bytes);
  TokenMask mask_of(int32_t state);

  AnswerGrammar grammar_;
  const TokenBytes& tokens_;
  std::optional<GrammarStates> states_;
  uint64_t epoch_ = 0;  // of states_, whose numbers mean nothing in another one
  std::map<std::pair<int32_t, std::vector<int32_t>>, std::shared_ptr<const TokenMask>> masks_;
};

class AnswerConstraints {
 public:
  /// `tokenizer` may be null if no answer has a form; must outlive it.
  AnswerConstraints(const Tokenizer* tokenizer, int64_t vocabulary)
      : tokenizer_(tokenizer), vocabulary_(vocabulary) {}
  /// Why answers of this model cannot have the form; thread-safe.
  std::vector<Problem> problems(const AnswerForm& form) const;
  /// One object for equal forms, while it is used. UserError as answer_grammar().
  std::shared_ptr<AnswerConstraint> of(const AnswerForm& form);

 private:
  const TokenBytes& tokens() const;

  const Tokenizer* tokenizer_;
  int64_t vocabulary_;
  mutable std::once_flag once_;
  mutable std::optional<TokenBytes> tokens_;
  std::map<std::string, std::weak_ptr<AnswerConstraint>> known_;
};

}  // namespace teratron
