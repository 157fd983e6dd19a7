#include "teratron/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

namespace teratron {
namespace {

bool has_flag(uint32_t code, uint16_t flag) {
  return unicode::characters()[code] & flag;
}

// The engine that strips blanks around tokens has the classic White_Space property.
bool is_blank(uint32_t code) {
  return has_flag(code, unicode::space);
}

size_t blanks_before(std::string_view text, size_t begin) {
  const char* p = text.data() + begin;
  while (p > text.data()) {
    const char* before = p;
    if (!is_blank(unicode::previous(text.data(), before))) break;
    p = before;
  }
  return static_cast<size_t>(p - text.data());
}

size_t blanks_behind(std::string_view text, size_t end) {
  const char* p = text.data() + end;
  while (p < text.data() + text.size()) {
    const char* after = p;
    if (!is_blank(unicode::next(after))) break;
    p = after;
  }
  return static_cast<size_t>(p - text.data());
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  trie_.emplace_back();
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const auto first = static_cast<uint8_t>(tokens_[i].content[0]);
    only_first_ = i == 0 || only_first_ == first ? first : 256;
    first_[first] = true;
    uint32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<uint8_t>(c);
      uint32_t next = child(node, byte);
      if (next == 0) {
        next = static_cast<uint32_t>(trie_.size());
        auto& edges = trie_[node].next;
        edges.insert(std::upper_bound(edges.begin(), edges.end(), std::pair(byte, next)), {byte, next});
        trie_.emplace_back();
      }
      node = next;
    }
    trie_[node].token = static_cast<int32_t>(i);
  }
}

uint32_t AddedTokenMatcher::child(uint32_t node, uint8_t byte) const {
  const auto& edges = trie_[node].next;
  const auto found = std::lower_bound(edges.begin(), edges.end(), std::pair<uint8_t, uint32_t>(byte, 0));
  return found != edges.end() && found->first == byte ? found->second : 0;
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, Match& match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (only_first_ < 256) {
      const void* hit = std::memchr(text.data() + begin, only_first_, text.size() - begin);
      if (hit == nullptr) return false;
      begin = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    } else if (!first_[static_cast<uint8_t>(text[begin])]) {
      continue;
    }
    int32_t longest = -1;
    size_t end = begin;
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) break;
      if (trie_[node].token >= 0) {
        longest = trie_[node].token;
        end = i + 1;
      }
    }
    if (longest >= 0) {
      match = {begin, end, longest};
      return true;
    }
  }
  return false;
}

bool AddedTokenMatcher::stands_alone(std::string_view text, const Match& match) const {
  const char* before = text.data() + match.begin;
  if (match.begin > 0 && has_flag(unicode::previous(text.data(), before), unicode::word)) return false;
  const char* after = text.data() + match.end;
  return match.end == text.size() || !has_flag(unicode::next(after), unicode::word);
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  Match match{};
  for (size_t from = 0; !tokens_.empty() && find(text, from, match); from = match.end) {
    const AddedToken& token = tokens_[match.token];
    if (token.single_word && !stands_alone(text, match)) continue;
    const size_t begin = token.lstrip ? std::max(done, blanks_before(text, match.begin)) : match.begin;
    const size_t end = token.rstrip ? blanks_behind(text, match.end) : match.end;
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace teratron
