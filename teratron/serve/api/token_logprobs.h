// Log probabilities of tokens in OpenAI's two forms.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/generate/request.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// The bytes that a token adds behind another one; -1: there is none.
std::string token_bytes(const Tokenizer& tokenizer, int32_t before, int32_t token);

/// Collects tokens in order.
class TokenLogprobs {
 public:
  /// `before`: the token before the first; -1: none.
  TokenLogprobs(const Tokenizer& tokenizer, bool chat, int32_t before)
      : tokenizer_(tokenizer), chat_(chat), before_(before) {}
  /// The first token of a text, whose probability no model knows.
  void add_first(int32_t token);
  void add(const GeneratedToken& token);
  bool empty() const { return entries_.empty(); }
  /// Takes what was added since the last call.
  ///
  /// Completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, where tokens that are not
  /// complete characters are "bytes:\xNN..." and offsets count code points from the first token on.
  /// Chats: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}.
  nlohmann::ordered_json take();

 private:
  struct Entry {
    std::string bytes;
    double logprob = 0.0;
    bool has_logprob = true;
    std::vector<std::pair<std::string, double>> top;
  };
  void push(Entry entry, int32_t token);
  nlohmann::ordered_json completion_json();
  nlohmann::ordered_json chat_json();

  const Tokenizer& tokenizer_;
  bool chat_;
  int32_t before_;
  int64_t offset_ = 0;  // code points before the first entry
  std::vector<Entry> entries_;
};

}  // namespace teratron
