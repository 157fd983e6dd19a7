// Samples of the tasks that a GPT does without finetuning, as Megatron-LM builds them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// Tokens, of which those from `first` on are predicted.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  int64_t first = 1;
};

/// Windows of seq_length predicted tokens that begin `overlap` tokens apart, over the tokens of a text. After
/// the first one, only the last `overlap` positions of a window count: each token is predicted once, with as
/// many tokens before it as possible. With an overlap above seq_length, the tokens between windows are left
/// out.
class Windows {
 public:
  Windows(std::vector<int32_t> tokens, int64_t seq_length, int64_t overlap);
  int64_t size() const { return size_; }
  /// One token or fewer from `first` on: nothing counts in this window.
  ScoredTokens get(int64_t i) const;
  /// Predicted in all windows together if each counts: tokens - 1.
  int64_t targets() const { return static_cast<int64_t>(tokens_.size()) - 1; }

 private:
  std::vector<int32_t> tokens_;
  int64_t length_, overlap_, size_;
};

/// The last token of a text or, if `strict`, its last word: what is split off and tokenized by itself.
ScoredTokens lambada_sample(const Tokenizer& tokenizer, std::string_view text, bool strict);
/// The samples of all lines {"text": ...} of a file. UserError(data) with file:line for each that is not
/// one, or has only one token or word.
std::vector<ScoredTokens> lambada_samples(const Tokenizer& tokenizer, const std::string& path, bool strict);

}  // namespace teratron
