#include "teratron/tokenizer/bert/wordpiece_tokenizer.h"

#include <array>

namespace teratron {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// What the library does to each token, with the space before it.
void clean_up(std::string& token) {
  constexpr std::array<std::array<std::string_view, 2>, 11> kReplacements = {{{" .", "."},
                                                                              {" ?", "?"},
                                                                              {" !", "!"},
                                                                              {" ,", ","},
                                                                              {" ' ", "'"},
                                                                              {" n't", "n't"},
                                                                              {" 'm", "'m"},
                                                                              {" do not", " don't"},
                                                                              {" 's", "'s"},
                                                                              {" 've", "'ve"},
                                                                              {" 're", "'re"}}};
  for (const auto& [from, to] : kReplacements) replace_all(token, from, to);
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(WordPieceConfig config)
    : config_(std::move(config)), words_(config_.vocabulary) {}

void WordPieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  encode_all(
      {text}, [&](int32_t id, NormalizedView) { ids.push_back(id); },
      [&](NormalizedView word) { words_.encode_word(word.text, config_.max_characters, ids); });
}

std::vector<TokenSpan> WordPieceTokenizer::encode_with_offsets(std::string_view text) const {
  const NormalizedString aligned = NormalizedString::with_alignments(text);
  std::vector<TokenSpan> spans;
  const Emit token = [&](int32_t id, NormalizedView piece) {
    const Offsets offsets = piece.offsets();
    spans.push_back({id, offsets.begin, offsets.end});
  };
  encode_all(aligned.view(), token, [&](NormalizedView word) {
    std::vector<int32_t> ids;
    words_.encode_word(word.text, config_.max_characters, ids);
    for_each_token(words_, ids, word, token);
  });
  return spans;
}

void WordPieceTokenizer::encode_all(NormalizedView text, const Emit& token, const EmitWord& word) const {
  for (const int32_t id : config_.prefix) token(id, {});
  for (const auto& part : config_.added.split(text.text)) {
    const NormalizedView view = text.slice(part.text);
    if (part.id >= 0) {
      token(part.id, view);
    } else {
      encode_normalized(bert_normalize(view, config_.rules).view(), token, word);
    }
  }
  for (const int32_t id : config_.suffix) token(id, {});
}

void WordPieceTokenizer::encode_normalized(NormalizedView text, const Emit& token,
                                           const EmitWord& word) const {
  for (const auto& part : config_.normalized_added.split(text.text)) {
    if (part.id >= 0) {
      token(part.id, text.slice(part.text));
    } else {
      split_bert_words(text.slice(part.text), config_.rules, word);
    }
  }
}

std::vector<bool> WordPieceTokenizer::continuation_pieces() const {
  std::vector<bool> continues;
  for (int32_t id = 0; id < vocab_size(); ++id)
    continues.push_back(words_.token_of(id).starts_with(WordPiece::kContinuingPrefix));
  return continues;
}

std::string WordPieceTokenizer::token_text(int32_t id, bool is_first) const {
  const auto added = config_.added_content.find(id);
  const std::string_view token = added == config_.added_content.end() ? words_.token_of(id) : added->second;
  const bool continues =
      config_.decoder != WordPieceDecoder::tokens && token.starts_with(WordPiece::kContinuingPrefix);
  // The library strips no prefix from the first token.
  const bool keeps_prefix = is_first && config_.decoder != WordPieceDecoder::megatron;
  if (continues && !keeps_prefix) return std::string(token.substr(WordPiece::kContinuingPrefix.size()));
  return is_first ? std::string(token) : fmt::format(" {}", token);
}

std::string WordPieceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  bool is_first = true;
  for (const int32_t id : ids) {
    const bool megatron = config_.decoder == WordPieceDecoder::megatron;
    if (megatron && (id == config_.special.pad || id == config_.special.cls)) continue;
    std::string token = token_text(id, is_first);
    if (config_.decoder == WordPieceDecoder::cleanup) clean_up(token);
    text += token;
    is_first = megatron ? text.empty() : false;
  }
  return text;
}

}  // namespace teratron
