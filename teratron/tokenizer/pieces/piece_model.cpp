#include "teratron/tokenizer/pieces/piece_model.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

[[noreturn]] void reject_pieces(const std::string& where, std::string what) {
  throw data_error({.what = std::move(what), .where = where, .fix = "use the tokenizer's original file"});
}

std::vector<std::pair<std::string, int32_t>> numbered(
    const std::vector<std::pair<std::string, double>>& pieces) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (const auto& [text, score] : pieces) tokens.emplace_back(text, static_cast<int32_t>(tokens.size()));
  return tokens;
}

}  // namespace

PieceVocabulary::PieceVocabulary(std::vector<std::pair<std::string, int32_t>> tokens,
                                 const std::string& where) {
  // Ids may have gaps for added tokens, but the table by id must stay proportional to the file.
  const int64_t limit = static_cast<int64_t>(tokens.size()) * 8 + 65536;
  int64_t bound = 0;
  for (const auto& [token, id] : tokens) {
    if (token.empty()) reject_pieces(where, fmt::format("the token of id {} is empty", id));
    if (id >= limit)
      reject_pieces(where, fmt::format("id {} of token '{}' is out of range (0 to {})", id, printable(token),
                                       limit - 1));
    bound = std::max<int64_t>(bound, int64_t{id} + 1);
  }
  tokens_.resize(static_cast<size_t>(bound));
  for (auto& [token, id] : tokens) {
    std::string& place = tokens_[static_cast<size_t>(id)];
    if (!place.empty()) reject_pieces(where, fmt::format("id {} belongs to two tokens", id));
    place = std::move(token);
    if (!ids_.emplace(place, id).second)
      reject_pieces(where, fmt::format("token '{}' appears twice", printable(place)));
  }
}

std::optional<int32_t> PieceVocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::string_view PieceVocabulary::token_of(int32_t id) const {
  return id < 0 || id >= id_bound() ? std::string_view() : tokens_[static_cast<size_t>(id)];
}

std::optional<std::vector<int32_t>> PieceVocabulary::bytes_of(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const char byte : text) {
    const auto id = id_of(fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte)));
    if (!id) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

// ---- Unigram ----

/// The best path to a byte of the word.
struct UnigramModel::Node {
  double score = 0;
  int64_t begin = -1;  // of its last piece; -1: not reached
  int32_t id = 0;
};

UnigramModel::UnigramModel(const UnigramConfig& config)
    : PieceModel(PieceVocabulary(numbered(config.pieces), config.where)),
      unknown_(config.unknown),
      byte_fallback_(config.byte_fallback) {
  if (unknown_ < 0 || unknown_ >= vocabulary_.id_bound())
    reject_pieces(config.where,
                  fmt::format("unk_id {} is not among the {} pieces", unknown_, vocabulary_.id_bound()));
  double lowest = INFINITY;
  for (const auto& [text, score] : config.pieces) {
    if (!std::isfinite(score))
      reject_pieces(config.where, fmt::format("the piece '{}' has no finite score", printable(text)));
    trie_.insert(text, static_cast<int32_t>(scores_.size()));
    scores_.push_back(score);
    lowest = std::min(lowest, score);
  }
  constexpr double kUnknownPenalty = 10.0;
  unknown_score_ = lowest - kUnknownPenalty;
}

std::vector<UnigramModel::Node> UnigramModel::best_paths(std::string_view word) const {
  std::vector<Node> nodes(word.size() + 1);
  const auto offer = [&nodes](size_t begin, size_t end, int32_t id, double score) {
    Node& node = nodes[end];
    const double total = score + nodes[begin].score;
    if (node.begin < 0 || total > node.score) node = {total, static_cast<int64_t>(begin), id};
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t character = unicode::sequence_bytes(word[begin]);
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < word.size();) {
      node = trie_.child(node, static_cast<uint8_t>(word[end++]));
      if (node == ByteTrie::kNone) break;
      const int32_t id = trie_.value(node);
      if (id < 0) continue;
      offer(begin, end, id, scores_[static_cast<size_t>(id)]);
      has_character = has_character || end - begin == character;
    }
    if (!has_character) offer(begin, begin + character, unknown_, unknown_score_);
    begin += character;
  }
  return nodes;
}

// As the library, by the text: a run of unknown characters may itself be a piece.
void UnigramModel::append(std::string_view text, std::vector<Piece>& pieces) const {
  if (const auto id = vocabulary_.id_of(text)) return pieces.push_back({*id, text});
  if (byte_fallback_) {
    if (const auto bytes = vocabulary_.bytes_of(text)) {
      for (const int32_t id : *bytes) pieces.push_back({id, text});
      return;
    }
  }
  pieces.push_back({unknown_, text});
}

std::vector<Piece> UnigramModel::encode(std::string_view word) const {
  const std::vector<Node> nodes = best_paths(word);
  std::vector<std::string_view> texts;  // from the last one on
  bool after_unknown = false;
  for (size_t end = word.size(); end > 0;) {
    const Node& node = nodes[end];
    const auto begin = static_cast<size_t>(node.begin);
    const bool unknown = node.id == unknown_;
    if (unknown && after_unknown) {
      texts.back() = {word.data() + begin, texts.back().size() + end - begin};
    } else {
      texts.push_back(word.substr(begin, end - begin));
    }
    after_unknown = unknown;
    end = begin;
  }
  std::vector<Piece> pieces;
  for (auto text = texts.rbegin(); text != texts.rend(); ++text) append(*text, pieces);
  return pieces;
}

}  // namespace teratron
