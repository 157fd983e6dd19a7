// Changes of one row of logits before a token is chosen: penalties, biases, the form
// of an answer, min-p, and top-p after top-k.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "teratron/generate/grammar/answer_constraint.h"
#include "teratron/generate/sampling.h"

namespace teratron {

/// logit + bias, divided by `penalty` if that is positive and else multiplied by it, minus `taken`.
struct TokenEdit {
  int32_t id = 0;
  double bias = 0.0, penalty = 1.0, taken = 0.0;
};

struct LogitEdits {
  std::vector<TokenEdit> tokens = {};
  double min_p = 0.0;  // drops tokens less probable than this part of the most probable one
  int64_t top_k = 0;   // with top_p: keeps the k most probable tokens, then those of their mass
  double top_p = 0.0;
  std::shared_ptr<const TokenMask> allowed = {};  // tokens that may follow; null: all

  bool empty() const { return tokens.empty() && min_p == 0.0 && top_k == 0 && allowed == nullptr; }
};

/// Whether the options need edits, which depend on the tokens before.
bool edits_logits(const SamplingOptions& options);
/// `tokens`: the prompt and the new tokens that follow it. Presence and frequency count new tokens, the
/// penalty of repetition all.
LogitEdits edits_of(const SamplingOptions& options, std::span<const int32_t> tokens, size_t prompt);

/// As sample_rows(), from edited logits [R, V]; the log probabilities are those of the logits as they were.
/// `parameters_R5` on the logits' device; edits of each row.
at::Tensor sample_edited_rows(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                              const SamplingNeeds& needs, const std::vector<const LogitEdits*>& edits);

}  // namespace teratron
