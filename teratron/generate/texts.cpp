#include "teratron/generate/texts.h"

#include <algorithm>

namespace teratron {

namespace {

size_t first_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

// Bytes at the end that may be the beginning of a text that ends the answer.
size_t begun_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t length = std::min(stop.size() - 1, text.size()); length > longest; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
    }
  }
  return longest;
}

// Bytes at the end of a character that is not complete.
size_t incomplete_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;
    const size_t length = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

int32_t only_token(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  try {
    tokenizer.encode(text, ids);
  } catch (const UserError&) {  // text that the tokenizer does not know, such as words for one of numbers
    return -1;
  }
  return ids.size() == 1 && tokenizer.decode(ids) == text ? ids.front() : -1;
}

}  // namespace

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, int32_t bos) {
  std::vector<int32_t> ids;
  if (bos >= 0) ids.push_back(bos);
  tokenizer.encode(text, ids);
  if (!ids.empty()) return ids;
  throw config_error(
      {.what = "the prompt has no tokens", .where = "--prompt", .fix = "Write at least one word"});
}

std::string continuation(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& tokens) {
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());
  const std::string text = tokenizer.decode(all);
  return text.substr(std::min(tokenizer.decode(prompt).size(), text.size()));
}

std::string answer_text(const Tokenizer& tokenizer, const GenerationRequest& request,
                        const GeneratedChoice& choice) {
  std::vector<int32_t> tokens = choice.tokens;
  const std::vector<int32_t>& ends = request.stop.tokens;
  const bool by_token = choice.finish_reason == "stop" && !tokens.empty() &&
                        std::find(ends.begin(), ends.end(), tokens.back()) != ends.end();
  if (by_token) tokens.pop_back();
  const std::string text = continuation(tokenizer, request.prompt, tokens);
  return text.substr(0, first_stop(text, request.stop.texts));
}

NewlineTokens newline_tokens(const Tokenizer& tokenizer) {
  return {.newline = only_token(tokenizer, "\n"),
          .double_newline = only_token(tokenizer, "\n\n"),
          .colon = only_token(tokenizer, ":")};
}

std::string TextStream::next(bool last) {
  const std::string text = continuation(tokenizer_, prompt_, tokens_);
  const size_t stop = first_stop(text, stop_.texts);
  size_t end = std::min(stop, text.size());
  ended_ = stop != std::string::npos;
  if (!last && !ended_) {
    end -= incomplete_bytes(text);
    const size_t begun = begun_stop(std::string_view(text).substr(0, end), stop_.texts);
    end -= begun;
  }
  if (end <= shown_) return "";
  const std::string added = text.substr(shown_, end - shown_);
  shown_ = end;
  return added;
}

std::string TextStream::add(int32_t token) {
  if (ended_) return "";
  if (std::find(stop_.tokens.begin(), stop_.tokens.end(), token) != stop_.tokens.end()) return "";
  tokens_.push_back(token);
  return next(false);
}

std::string TextStream::finish() {
  return ended_ ? "" : next(true);
}

}  // namespace teratron
