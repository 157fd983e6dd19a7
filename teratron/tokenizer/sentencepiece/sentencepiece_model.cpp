#include "teratron/tokenizer/sentencepiece/sentencepiece_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

constexpr size_t kLongestText = size_t{1} << 30;  // positions have 32 bits

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
  std::string text;
  bool at_start = true;
  bool removed_space = false;
  for (size_t i = 0; i < ids.size();) {
    if (type(ids[i]) != PieceType::byte) {
      if (removed_space || !text.empty()) at_start = false;
      text += decode_piece(ids[i++], at_start, removed_space);
      continue;
    }
    std::string bytes;
    for (; i < ids.size() && type(ids[i]) == PieceType::byte; ++i)
      bytes += static_cast<char>(byte_of(piece(ids[i])));
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t good = unicode::well_formed_bytes(rest);
      text += good > 0 ? rest.substr(0, good) : "\xef\xbf\xbd";
      rest.remove_prefix(std::max<size_t>(good, 1));
    }
  }
  return denormalizer_ ? denormalizer_->normalize(unicode::replace_invalid(text)) : text;
}

}  // namespace teratron
