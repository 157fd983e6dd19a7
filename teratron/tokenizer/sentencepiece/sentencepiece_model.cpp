#include "teratron/tokenizer/sentencepiece/sentencepiece_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <queue>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

constexpr size_t kLongestText = size_t{1} << 30;  // positions have 32 bits
constexpr float kUnknownPenalty = 10.0f;
constexpr float kLowestSum = -100'000.0f;  // below it, sums are rebased as in the library

UserError invalid_model(const SentencePieceSpec& spec, std::string what) {
  return data_error({.what = std::move(what),
                     .where = spec.where,
                     .fix = "pass the original .model file of SentencePiece"});
}

/// The byte of "<0x41>", or -1.
int byte_of(std::string_view piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const size_t high = kDigits.find(piece[3]);
  const size_t low = kDigits.find(piece[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return -1;
  return static_cast<int>(high * 16 + low);
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, unicode::sequence_bytes(text[0]));
}

std::string unescape_spaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const size_t end = std::min(piece.find(kSpaceSymbol, at), piece.size());
    text.append(piece.substr(at, end - at));
    if (end < piece.size()) text += ' ';
    at = end + kSpaceSymbol.size();
  }
  return text;
}

}  // namespace

SentencePieceModel::SentencePieceModel(SentencePieceSpec spec)
    : spec_(std::move(spec)), normalizer_(spec_.normalizer, user_defined_, spec_.where) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  // As the library, whose highest score is at least the smallest positive number.
  lowest_score_ = FLT_MAX;
  highest_score_ = FLT_MIN;
  for (int32_t id = 0; id < static_cast<int32_t>(spec_.pieces.size()); ++id) add_piece(id);
  if (unknown_ < 0) throw invalid_model(spec_, "the model has no unknown piece");
  if (spec_.byte_fallback) check_bytes();
  if (spec_.denormalizer) denormalizer_.emplace(*spec_.denormalizer, no_pieces_, spec_.where);
}

void SentencePieceModel::add_piece(int32_t id) {
  const SentencePiece& piece = spec_.pieces[static_cast<size_t>(id)];
  if (piece.text.empty()) throw invalid_model(spec_, fmt::format("piece {} is empty", id));
  if (!std::isfinite(piece.score))
    throw invalid_model(spec_, fmt::format("piece {} has no finite score", id));
  const bool ordinary = piece.type == PieceType::normal || piece.type == PieceType::user_defined ||
                        piece.type == PieceType::unused;
  if (!(ordinary ? pieces_ : reserved_).emplace(piece.text, id).second)
    throw invalid_model(spec_, fmt::format("the piece '{}' appears twice", printable(piece.text)));
  longest_piece_ = std::max(longest_piece_, piece.text.size());
  if (ordinary && spec_.kind == SentencePieceSpec::Kind::unigram) trie_.insert(piece.text, id);
  switch (piece.type) {
    case PieceType::normal:
      lowest_score_ = std::min(lowest_score_, piece.score);
      highest_score_ = std::max(highest_score_, piece.score);
      break;
    case PieceType::user_defined:
      user_defined_.insert(piece.text, id);
      break;
    case PieceType::unknown:
      if (unknown_ >= 0)
        throw invalid_model(spec_, fmt::format("both {} and {} are the unknown piece", unknown_, id));
      unknown_ = id;
      break;
    case PieceType::byte:
      if (byte_of(piece.text) < 0)
        throw invalid_model(spec_, fmt::format("'{}' is not a valid byte piece", printable(piece.text)));
      byte_ids_[byte_of(piece.text)] = id;
      break;
    default:
      break;
  }
}

void SentencePieceModel::check_bytes() {
  const auto* const missing = std::find(std::begin(byte_ids_), std::end(byte_ids_), -1);
  if (missing == std::end(byte_ids_)) return;
  throw invalid_model(spec_, fmt::format("byte fallback needs 256 byte pieces, but <0x{:02X}> is missing",
                                         missing - std::begin(byte_ids_)));
}

std::optional<int32_t> SentencePieceModel::id_of(std::string_view piece) const {
  for (const auto* const ids : {&reserved_, &pieces_}) {
    if (const auto found = ids->find(piece); found != ids->end()) return found->second;
  }
  return std::nullopt;
}

std::optional<int32_t> SentencePieceModel::control(const std::string& piece) const {
  const auto id = id_of(piece);
  return id && type(*id) == PieceType::control ? id : std::nullopt;
}

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

std::vector<SentencePieceModel::Segment> SentencePieceModel::segments(std::string_view normalized) const {
  if (normalized.size() > kLongestText) {
    throw data_error(
        {.what = fmt::format("a text of {} bytes exceeds the limit of SentencePiece", normalized.size()),
         .fix = "split it into documents of less than 1 GiB"});
  }
  std::vector<Segment> out;
  bool after_unknown = false;
  for (const Segment& segment :
       spec_.kind == SentencePieceSpec::Kind::unigram ? viterbi(normalized) : merge(normalized)) {
    const bool unknown = segment.id == unknown_;
    if (unknown && spec_.byte_fallback) {
      for (const char c : segment.text)
        out.push_back({segment.text.substr(0, 0), byte_ids_[static_cast<uint8_t>(c)]});
      out.back().text = segment.text;
    } else if (unknown && after_unknown) {
      out.back().text = {out.back().text.data(), out.back().text.size() + segment.text.size()};
    } else {
      out.push_back(segment);
    }
    after_unknown = unknown;
  }
  return out;
}

void SentencePieceModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const std::string normalized = normalizer_.normalize(text);
  for (const Segment& segment : segments(normalized)) ids.push_back(segment.id);
}

std::vector<SentencePieceModel::Piece> SentencePieceModel::encode_with_offsets(std::string_view text) const {
  std::vector<size_t> norm_to_orig;
  const std::string normalized = normalizer_.normalize(text, &norm_to_orig);
  std::vector<Piece> pieces;
  for (const Segment& segment : segments(normalized)) {
    const auto begin = static_cast<size_t>(segment.text.data() - normalized.data());
    pieces.push_back({segment.id, norm_to_orig[begin], norm_to_orig[begin + segment.text.size()]});
  }
  return pieces;
}

std::string SentencePieceModel::decode_piece(int32_t id, bool at_start, bool& removed_space) const {
  removed_space = false;
  if (type(id) == PieceType::control) return {};
  if (type(id) == PieceType::unknown) return spec_.unk_surface;
  const NormalizerSpec& spec = spec_.normalizer;
  std::string_view text = piece(id);
  if (at_start && (spec.add_dummy_prefix || spec.remove_extra_whitespaces) &&
      text.starts_with(kSpaceSymbol)) {
    text.remove_prefix(kSpaceSymbol.size());
    // With remove_extra_whitespaces the following pieces lose theirs too.
    removed_space = !spec.remove_extra_whitespaces;
  }
  return unescape_spaces(text);
}

std::string SentencePieceModel::decode(std::span<const int32_t> ids) const {
  Decoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.add(id);
  return text + decoder.rest();
}

bool SentencePieceModel::is_special(int32_t id) const {
  return id >= 0 && id < size() && (type(id) == PieceType::control || type(id) == PieceType::unknown);
}

namespace {

// Well-formed characters, and U+FFFD for each other byte.
std::string characters_of_bytes(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t good = unicode::well_formed_bytes(bytes);
    text += good > 0 ? bytes.substr(0, good) : "\xef\xbf\xbd";
    bytes.remove_prefix(std::max<size_t>(good, 1));
  }
  return text;
}

}  // namespace

std::string SentencePieceModel::Decoder::add(int32_t id) {
  // A model may have more rows than its tokenizer has pieces.
  if (id < 0 || id >= model_->size()) return {};
  std::string text;
  if (model_->type(id) == PieceType::byte) {
    bytes_ += static_cast<char>(byte_of(model_->piece(id)));
    const size_t complete = bytes_.size() - unicode::truncated_bytes(bytes_);
    text = characters_of_bytes(std::string_view(bytes_).substr(0, complete));
    bytes_.erase(0, complete);
    has_text_ = true;
  } else {
    text = characters_of_bytes(std::exchange(bytes_, {}));
    if (removed_space_ || has_text_) at_start_ = false;
    text += model_->decode_piece(id, at_start_, removed_space_);
    has_text_ = has_text_ || !text.empty();
  }
  if (!model_->denormalizer_) return text;
  held_ += text;
  return {};
}

std::string SentencePieceModel::Decoder::rest() const {
  const std::string text = held_ + characters_of_bytes(bytes_);
  return model_->denormalizer_ ? model_->denormalizer_->normalize(unicode::replace_invalid(text)) : text;
}

}  // namespace teratron
