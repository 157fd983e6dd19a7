// The segmentation algorithms of SentencePieceModel: Viterbi and BPE.
#include <algorithm>
#include <queue>

#include "teratron/tokenizer/sentencepiece/sentencepiece_model.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

constexpr float kUnknownPenalty = 10.0f;
constexpr float kLowestSum = -100'000.0f;  // below it, sums are rebased as in the library

std::string_view first_character(std::string_view text) {
  return text.substr(0, unicode::sequence_bytes(text[0]));
}

}  // namespace

std::vector<SentencePieceModel::Segment> SentencePieceModel::viterbi(std::string_view text) const {
  // The best segmentation up to a position. Sums are float, as in the library: long texts and ties depend on
  // it.
  struct Best {
    int32_t id = -1;
    float score = 0;
    int32_t begin = -1;
  };
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t id, float score) {
    if (best[end].begin >= 0 && score <= best[end].score) return;
    best[end] = {id, score, static_cast<int32_t>(begin)};
  };
  for (size_t begin = 0; begin < text.size();) {
    if (best[begin].score < kLowestSum) {
      const float passed = best[begin].score;
      const size_t last = std::min(text.size(), begin + longest_piece_);
      for (size_t end = begin; end <= last; ++end) best[end].score -= passed;
    }
    const float so_far = best[begin].score;
    const size_t character = first_character(text.substr(begin)).size();
    bool covered = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = trie_.child(node, static_cast<uint8_t>(text[end]));
      if (node == ByteTrie::kNone) break;
      ++end;
      const int32_t id = trie_.value(node);
      if (id < 0 || type(id) == PieceType::unused) continue;
      // A user-defined piece wins against all others.
      const float gain = type(id) == PieceType::user_defined
                             ? static_cast<float>(end - begin) * highest_score_ - 0.1f
                             : score(id);
      offer(begin, end, id, gain + so_far);
      covered = covered || end - begin == character;
    }
    if (!covered) {
      offer(begin, begin + character, unknown_, lowest_score_ - kUnknownPenalty + so_far);
    }
    begin += character;
  }
  std::vector<Segment> segments;
  for (auto end = static_cast<int32_t>(text.size()); end > 0; end = best[static_cast<size_t>(end)].begin) {
    const Best& last = best[static_cast<size_t>(end)];
    segments.push_back(
        {text.substr(static_cast<size_t>(last.begin), static_cast<size_t>(end - last.begin)), last.id});
  }
  std::reverse(segments.begin(), segments.end());
  return segments;
}

/// State of the BPE merges.
struct SentencePieceModel::Merges {
  struct Symbol {
    int32_t before, after;  // neighbors; -1: none
    bool is_fixed;          // a user-defined piece is never merged
    std::string_view text;  // empty: merged into the previous one
  };
  struct Pair {
    float score;
    int32_t left, right;
    size_t bytes;
    bool operator<(const Pair& o) const { return score != o.score ? score < o.score : left > o.left; }
  };
  using Halves = std::pair<std::string_view, std::string_view>;

  const SentencePieceModel& model;
  std::vector<Symbol> symbols;
  std::priority_queue<Pair> queue;
  std::unordered_map<std::string_view, Halves> halves;  // of unused pieces

  void split(std::string_view text) {
    while (!text.empty()) {
      const size_t fixed = model.user_defined_.longest_prefix(text).bytes;
      const std::string_view piece = fixed > 0 ? text.substr(0, fixed) : first_character(text);
      text.remove_prefix(piece.size());
      const auto at = static_cast<int32_t>(symbols.size());
      symbols.push_back({at - 1, text.empty() ? -1 : at + 1, fixed > 0, piece});
    }
  }

  static std::string_view concatenated(const Symbol& left, const Symbol& right) {
    return {left.text.data(), left.text.size() + right.text.size()};
  }

  void offer(int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const Symbol& b = symbols[static_cast<size_t>(right)];
    if (a.is_fixed || b.is_fixed) return;
    const auto found = model.pieces_.find(concatenated(a, b));
    if (found == model.pieces_.end()) return;
    queue.push({model.score(found->second), left, right, concatenated(a, b).size()});
    if (model.type(found->second) == PieceType::unused) halves[concatenated(a, b)] = {a.text, b.text};
  }

  void merge_all() {
    for (size_t i = 1; i < symbols.size(); ++i) offer(static_cast<int32_t>(i - 1), static_cast<int32_t>(i));
    while (!queue.empty()) {
      const Pair top = queue.top();
      queue.pop();
      Symbol& left = symbols[static_cast<size_t>(top.left)];
      Symbol& right = symbols[static_cast<size_t>(top.right)];
      const bool stale =
          left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != top.bytes;
      if (stale) continue;
      left.text = concatenated(left, right);
      left.after = right.after;
      if (right.after >= 0) symbols[static_cast<size_t>(right.after)].before = top.left;
      right.text = {};
      offer(left.before, top.left);
      offer(top.left, left.after);
    }
  }

  /// Unused pieces are split again. The depth is at most the length of a piece.
  void emit(std::string_view text, std::vector<Segment>& segments) const {
    const int32_t id = model.id_of(text).value_or(model.unknown_);
    const auto found = model.type(id) == PieceType::unused ? halves.find(text) : halves.end();
    if (found == halves.end()) {
      segments.push_back({text, id});
      return;
    }
    emit(found->second.first, segments);
    emit(found->second.second, segments);
  }
};

std::vector<SentencePieceModel::Segment> SentencePieceModel::merge(std::string_view text) const {
  Merges merges{.model = *this, .symbols = {}, .queue = {}, .halves = {}};
  merges.split(text);
  merges.merge_all();
  std::vector<Segment> segments;
  if (text.empty()) return segments;
  for (int32_t i = 0; i >= 0; i = merges.symbols[static_cast<size_t>(i)].after)
    merges.emit(merges.symbols[static_cast<size_t>(i)].text, segments);
  return segments;
}

}  // namespace teratron
