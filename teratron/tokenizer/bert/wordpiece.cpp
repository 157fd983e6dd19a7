#include "teratron/tokenizer/bert/wordpiece.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {
namespace {

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

}  // namespace

WordPiece::WordPiece(const WordPieceVocabulary& vocabulary) {
  for (const auto& [token, id] : vocabulary.tokens) {
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[id] = token;
    ids_.insert_or_assign(token, id);
    longest_ = std::max(longest_, token.size());
    if (token.size() > kContinuingPrefix.size() && token.starts_with(kContinuingPrefix))
      continuing_.insert_or_assign(token.substr(kContinuingPrefix.size()), id);
  }
  const auto unknown = ids_.find(vocabulary.unknown);
  if (unknown == ids_.end()) {
    throw data_error({.what = fmt::format("the vocabulary has no {}", printable(vocabulary.unknown)),
                      .where = vocabulary.where,
                      .fix = "use the tokenizer's original file, with all its tokens"});
  }
  unk_ = unknown->second;
}

size_t WordPiece::covered_bytes(int32_t id, std::string_view rest) const {
  if (id == unk_) return rest.size();
  const std::string_view token = token_of(id);
  return rest.starts_with(token) ? token.size() : token.size() - kContinuingPrefix.size();
}

std::string_view WordPiece::token_of(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? std::string_view(tokens_[id])
                                                             : std::string_view();
}

void WordPiece::encode_word(std::string_view word, size_t max_characters, std::vector<int32_t>& ids) const {
  if (word.size() > max_characters && count_characters(word) > max_characters) {
    ids.push_back(unk_);
    return;
  }
  const size_t before = ids.size();
  for (size_t begin = 0; begin < word.size();) {
    const Ids& pieces = begin == 0 ? ids_ : continuing_;
    size_t end = std::min(word.size(), begin + longest_);
    auto found = pieces.end();
    for (; end > begin; --end) {
      const bool inside_character = end < word.size() && (static_cast<uint8_t>(word[end]) & 0xc0) == 0x80;
      if (inside_character) continue;
      found = pieces.find(word.substr(begin, end - begin));
      if (found != pieces.end()) break;
    }
    if (end == begin) {
      ids.resize(before);
      ids.push_back(unk_);
      return;
    }
    ids.push_back(found->second);
    begin = end;
  }
}

}  // namespace teratron
