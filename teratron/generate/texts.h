// The texts of answers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/generate/request.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// UserError(config) with `where` if the text has no tokens. `bos`, unless negative, is put before them.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, int32_t bos);

/// The text after a prompt, token by token: what the text of prompt and tokens, decoded together, has beyond
/// that of the prompt. Ill-formed UTF-8 is replaced.
class AnswerText {
 public:
  /// The tokenizer must outlive it.
  AnswerText(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt, bool skip_special_tokens);
  AnswerText(const AnswerText& other);
  AnswerText& operator=(const AnswerText& other);
  AnswerText(AnswerText&&) = default;
  AnswerText& operator=(AnswerText&&) = default;

  void add(int32_t token);
  /// What no further token changes.
  std::string_view certain() const { return std::string_view(text_).substr(common_); }
  /// The text if no token follows, from this byte of it on.
  std::string whole(size_t begin = 0) const;

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::unique_ptr<TextDecoder> decoder_;
  std::string context_;  // of the prompt's text, what tokens may still change
  std::string text_;
  size_t common_ = 0;  // bytes of both
};

/// Whether this token ends an answer; its text does not include it.
bool ends_at_token(const StopRules& stop, int32_t token);

/// The text of an answer to `request`: without the token or text that ended it.
std::string answer_text(const Tokenizer& tokenizer, const GenerationRequest& request,
                        const GeneratedChoice& choice);

/// Ids of the tokens that the rules on newlines are about.
NewlineTokens newline_tokens(const Tokenizer& tokenizer);

/// The text of an answer while it is generated: what is certain, and nothing that may become a text that ends
/// the answer. All together is answer_text().
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const GenerationRequest& request)
      : text_(tokenizer, request.prompt, request.skip_special_tokens), stop_(request.stop) {}
  /// The text that this token adds.
  std::string add(int32_t token);
  /// What was held back when the answer has ended otherwise.
  std::string finish();

 private:
  std::string next(std::string_view text, bool last);

  AnswerText text_;
  StopRules stop_;
  size_t shown_ = 0;  // bytes
  bool ended_ = false;
};

}  // namespace teratron
