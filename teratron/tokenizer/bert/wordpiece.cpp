#include "teratron/tokenizer/bert/wordpiece.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/vocab_files.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

constexpr std::string_view kContinuingPrefix = "##";

/// Python's str.strip(), which the reference applies to each line.
std::string_view strip(std::string_view text) {
  const unicode::CharacterTable& table = unicode::characters();
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (begin < end) {
    const char* after = begin;
    if (!(table[unicode::next(after)] & unicode::python_split)) break;
    begin = after;
  }
  while (end > begin) {
    const char* before = end;
    if (!(table[unicode::previous(begin, before)] & unicode::python_split)) break;
    end = before;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

}  // namespace

WordPiece::WordPiece(const std::string& vocab_file) : path_(vocab_file) {
  const std::string text = read_text_file(vocab_file);
  for (const std::string_view line : split_lines(text)) {
    const std::string_view token = strip(line);
    const auto id = static_cast<int32_t>(tokens_.size());
    tokens_.emplace_back(token);
    ids_.insert_or_assign(std::string(token), id);
    longest_ = std::max(longest_, token.size());
    if (token.size() > kContinuingPrefix.size() && token.starts_with(kContinuingPrefix)) {
      continuing_.insert_or_assign(std::string(token.substr(kContinuingPrefix.size())), id);
    }
  }
  const auto unk = id_of("[UNK]");
  if (!unk) {
    throw data_error({.what = "the vocabulary has no [UNK]",
                      .where = path_,
                      .fix = "pass BERT's vocab.txt, one token per line"});
  }
  unk_ = *unk;
}

size_t WordPiece::covered_bytes(int32_t id, std::string_view rest) const {
  if (id == unk_) return rest.size();
  const std::string_view token = token_of(id);
  return rest.starts_with(token) ? token.size() : token.size() - kContinuingPrefix.size();
}

std::optional<int32_t> WordPiece::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::string_view WordPiece::token_of(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? std::string_view(tokens_[id])
                                                             : std::string_view();
}

int32_t WordPiece::add(const std::string& token) {
  if (const auto known = id_of(token)) return *known;
  const auto id = static_cast<int32_t>(ids_.size());
  ids_.emplace(token, id);
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
  tokens_[id] = token;
  return id;
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
