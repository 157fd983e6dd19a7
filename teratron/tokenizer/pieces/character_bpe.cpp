// The BPE of piece_model.h.
#include <queue>

#include "teratron/base/error.h"
#include "teratron/tokenizer/pieces/piece_model.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

/// A run of the word's bytes in the list of symbols; empty: merged into the one before.
struct CharacterBpeModel::Symbol {
  int32_t id = 0;
  std::string_view text;
  int64_t before = -1, after = -1;
};

CharacterBpeModel::CharacterBpeModel(const CharacterBpeConfig& config)
    : PieceModel(PieceVocabulary(config.vocab, config.where)),
      fuse_unk_(config.fuse_unk),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges) {
  const auto require = [&](const std::string& token, const char* what) {
    if (const auto id = vocabulary_.id_of(token)) return *id;
    throw data_error({.what = fmt::format("{} '{}' is not in the vocabulary", what, printable(token)),
                      .where = config.where,
                      .fix = "use the tokenizer's original file"});
  };
  if (!config.unk_token.empty()) unknown_ = require(config.unk_token, "the unk_token");
  int32_t rank = 0;
  for (const auto& [left, right] : config.merges) {
    const Merge merge{rank++, require(left + right, "the merged token")};
    merges_.insert_or_assign(pair_key(require(left, "the token"), require(right, "the token")), merge);
  }
}

const CharacterBpeModel::Merge* CharacterBpeModel::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<CharacterBpeModel::Symbol> CharacterBpeModel::symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  std::optional<std::string_view> unknown;  // comes before the next character that has a token
  const auto add = [&symbols](int32_t id, std::string_view text) {
    symbols.push_back({.id = id, .text = text});
  };
  const auto flush = [&] {
    if (unknown) add(*unknown_, *unknown);
    unknown.reset();
  };
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, unicode::sequence_bytes(word[at]));
    at += character.size();
    if (const auto id = vocabulary_.id_of(character)) {
      flush();
      add(*id, character);
      continue;
    }
    // As in the library, bytes do not end a run of unknown characters.
    if (const auto bytes = byte_fallback_ ? vocabulary_.bytes_of(character) : std::nullopt) {
      for (size_t i = 0; i < bytes->size(); ++i) add((*bytes)[i], character.substr(i, 1));
      continue;
    }
    if (!unknown_) continue;
    if (unknown && fuse_unk_) {
      unknown = std::string_view(unknown->data(), unknown->size() + character.size());
    } else {
      flush();
      unknown = character;
    }
  }
  flush();
  return symbols;
}

void CharacterBpeModel::merge_all(std::vector<Symbol>& symbols) const {
  struct Candidate {
    int32_t rank, id;
    int64_t left;
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
  };
  std::priority_queue<Candidate> queue;
  const auto at = [&symbols](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto offer = [&](int64_t left, int64_t right) {
    if (left < 0 || right < 0) return;
    if (const Merge* const merge = find(at(left).id, at(right).id))
      queue.push({merge->rank, merge->id, left});
  };
  const auto count = static_cast<int64_t>(symbols.size());
  for (int64_t i = 0; i < count; ++i) {
    at(i).before = i - 1;
    at(i).after = i + 1 < count ? i + 1 : -1;
    offer(i - 1, i);
  }
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = at(top.left);
    if (left.text.empty() || left.after < 0) continue;
    Symbol& right = at(left.after);
    const Merge* const merge = find(left.id, right.id);
    if (!merge || merge->id != top.id) continue;  // one of them has changed since
    left.id = top.id;
    left.text = {left.text.data(), left.text.size() + right.text.size()};
    right.text = {};
    left.after = right.after;
    if (left.after >= 0) at(left.after).before = top.left;
    offer(left.before, top.left);
    offer(top.left, left.after);
  }
}

std::vector<Piece> CharacterBpeModel::encode(std::string_view word) const {
  if (ignore_merges_) {
    if (const auto id = vocabulary_.id_of(word)) return {{*id, word}};
  }
  std::vector<Symbol> all = symbols(word);
  merge_all(all);
  std::vector<Piece> pieces;
  for (const Symbol& symbol : all) {
    if (!symbol.text.empty()) pieces.push_back({symbol.id, symbol.text});
  }
  return pieces;
}

}  // namespace teratron
