#include "teratron/generate/texts.h"

#include <algorithm>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

size_t first_stop(std::string_view text, const std::vector<std::string>& stops, size_t from = 0) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop, from));
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

// Bytes that both begin with, up to the end of a character.
size_t common_bytes(std::string_view a, std::string_view b) {
  auto bytes = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto cuts = [&](std::string_view text) {
    return bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U;
  };
  while (bytes > 0 && (cuts(a) || cuts(b))) --bytes;
  return bytes;
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

AnswerText::AnswerText(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                       bool skip_special_tokens)
    : tokenizer_(&tokenizer), skip_special_(skip_special_tokens), decoder_(tokenizer.decoder()) {
  for (const int32_t token : prompt) add(token);
  text_.clear();
  context_ = unicode::replace_invalid(decoder_->rest());
}

AnswerText::AnswerText(const AnswerText& other)
    : tokenizer_(other.tokenizer_),
      skip_special_(other.skip_special_),
      decoder_(other.decoder_->clone()),
      context_(other.context_),
      text_(other.text_),
      common_(other.common_) {}

AnswerText& AnswerText::operator=(const AnswerText& other) {
  return *this = AnswerText(other);
}

void AnswerText::add(int32_t token) {
  if (skip_special_ && tokenizer_->is_special(token)) return;
  text_ += unicode::replace_invalid(decoder_->add(token));
  common_ = common_bytes(context_, text_);
}

std::string AnswerText::whole(size_t begin) const {
  const std::string rest = unicode::replace_invalid(decoder_->rest());
  if (common_ < context_.size()) {
    const std::string all = text_ + rest;
    return all.substr(std::min(common_bytes(context_, all) + begin, all.size()));
  }
  const size_t from = common_ + begin;
  if (from <= text_.size()) return text_.substr(from) + rest;
  return rest.substr(std::min(from - text_.size(), rest.size()));
}

bool ends_at_token(const StopRules& stop, int32_t token) {
  return !stop.on_eol && !stop.on_double_eol && std::ranges::find(stop.tokens, token) != stop.tokens.end();
}

std::string answer_text(const Tokenizer& tokenizer, const GenerationRequest& request,
                        const GeneratedChoice& choice) {
  std::span<const int32_t> tokens = choice.tokens;
  if (choice.finish_reason == "stop" && !tokens.empty() && ends_at_token(request.stop, tokens.back()))
    tokens = tokens.first(tokens.size() - 1);
  AnswerText text(tokenizer, request.prompt, request.skip_special_tokens);
  for (const int32_t token : tokens) text.add(token);
  const std::string whole = text.whole();
  return whole.substr(0, first_stop(whole, request.stop.texts));
}

NewlineTokens newline_tokens(const Tokenizer& tokenizer) {
  return {.newline = only_token(tokenizer, "\n"),
          .double_newline = only_token(tokenizer, "\n\n"),
          .colon = only_token(tokenizer, ":")};
}

// No stop begins in what was shown.
std::string TextStream::next(std::string_view text, bool last) {
  const size_t stop = first_stop(text, stop_.texts, shown_);
  ended_ = stop != std::string::npos;
  size_t end = std::min(stop, text.size());
  if (!last && !ended_) end -= begun_stop(text.substr(shown_), stop_.texts);
  const std::string_view added = text.substr(shown_, end - shown_);
  shown_ = end;
  return std::string(added);
}

std::string TextStream::add(int32_t token) {
  if (ended_ || ends_at_token(stop_, token)) return "";
  text_.add(token);
  return next(text_.certain(), false);
}

std::string TextStream::finish() {
  return ended_ ? "" : next(text_.whole(), true);
}

}  // namespace teratron
