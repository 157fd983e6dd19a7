// The texts of answers.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/generate/request.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// UserError(config) with `where` if the text has no tokens. `bos`, unless negative, is put before them.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, int32_t bos);

/// The text of `tokens` after `prompt`, decoded together since some tokenizers put a blank between two ids.
std::string continuation(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& tokens);

/// The text of an answer to `request`: without the token or text that ended it.
std::string answer_text(const Tokenizer& tokenizer, const GenerationRequest& request,
                        const GeneratedChoice& choice);

/// Ids of the tokens that the rules on newlines are about.
NewlineTokens newline_tokens(const Tokenizer& tokenizer);

/// The text of an answer while it is generated: complete characters only, and nothing that may become a text
/// that ends the answer.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const GenerationRequest& request)
      : tokenizer_(tokenizer), prompt_(request.prompt), stop_(request.stop) {}
  /// The text that this token adds.
  std::string add(int32_t token);
  /// What was held back when the answer has ended otherwise.
  std::string finish();

 private:
  std::string next(bool last);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> prompt_;
  StopRules stop_;
  std::vector<int32_t> tokens_;
  size_t shown_ = 0;  // bytes
  bool ended_ = false;
};

}  // namespace teratron
