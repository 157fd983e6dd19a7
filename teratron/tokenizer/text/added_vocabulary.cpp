#include "teratron/tokenizer/text/added_vocabulary.h"

#include <algorithm>
#include <cstring>

namespace teratron {
namespace {

bool has_flag(uint32_t code, uint16_t flag) {
  return unicode::characters()[code] & flag;
}

size_t skip_spaces_back(std::string_view text, size_t begin) {
  const char* p = text.data() + begin;
  while (p > text.data()) {
    const char* before = p;
    if (!has_flag(unicode::previous(text.data(), before), unicode::space)) break;
    p = before;
  }
  return static_cast<size_t>(p - text.data());
}

size_t skip_spaces(std::string_view text, size_t end) {
  const char* p = text.data() + end;
  while (p < text.data() + text.size()) {
    const char* after = p;
    if (!has_flag(unicode::next(after), unicode::space)) break;
    p = after;
  }
  return static_cast<size_t>(p - text.data());
}

}  // namespace

AddedVocabulary::AddedVocabulary(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const auto first = static_cast<uint8_t>(tokens_[i].content[0]);
    only_first_ = i == 0 || only_first_ == first ? first : 256;
    first_[first] = true;
    trie_.insert(tokens_[i].content, static_cast<int32_t>(i));
  }
}

bool AddedVocabulary::find(std::string_view text, size_t from, Match& match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (only_first_ < 256) {
      const void* hit = std::memchr(text.data() + begin, only_first_, text.size() - begin);
      if (hit == nullptr) return false;
      begin = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    } else if (!first_[static_cast<uint8_t>(text[begin])]) {
      continue;
    }
    if (const auto found = trie_.longest_prefix(text.substr(begin)); found.bytes > 0) {
      match = {begin, begin + found.bytes, found.value};
      return true;
    }
  }
  return false;
}

bool AddedVocabulary::is_single_word(std::string_view text, const Match& match) const {
  const char* before = text.data() + match.begin;
  if (match.begin > 0 && has_flag(unicode::previous(text.data(), before), unicode::word)) return false;
  const char* after = text.data() + match.end;
  return match.end == text.size() || !has_flag(unicode::next(after), unicode::word);
}

std::vector<AddedVocabulary::Part> AddedVocabulary::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  Match match{};
  for (size_t from = 0; !tokens_.empty() && find(text, from, match); from = match.end) {
    const AddedToken& token = tokens_[match.token];
    if (token.single_word && !is_single_word(text, match)) continue;
    const size_t begin = token.lstrip ? std::max(done, skip_spaces_back(text, match.begin)) : match.begin;
    const size_t end = token.rstrip ? skip_spaces(text, match.end) : match.end;
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace teratron
