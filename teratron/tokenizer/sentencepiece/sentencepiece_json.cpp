#include "teratron/tokenizer/sentencepiece/sentencepiece_json.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/tokenizer/base64.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_normalizer.h"

namespace teratron {
namespace {

using Json = nlohmann::ordered_json;

void check(const SentencePieceSpec& spec) {
  const auto refuse = [&spec](std::string_view what) {
    throw data_error({.what = fmt::format("tokenizer.json cannot hold this model: {}", what),
                      .where = spec.where,
                      .fix = "Give the exported folder a tokenizer of your own with --tokenizer-name"});
  };
  if (std::ranges::any_of(spec.pieces, [](const auto& piece) { return piece.type == PieceType::unused; }))
    refuse("it has unused pieces");
  if (!spec.normalizer.escape_whitespaces) refuse("its pieces hold spaces unescaped");
  if (spec.normalizer.whitespace_as_suffix) refuse("spaces follow words");
  if (spec.denormalizer && !spec.denormalizer->charsmap.empty()) refuse("it normalizes decoded text");
}

Json replace(const Json& pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}

Json sequence(const char* list, Json items) {
  return {{"type", "Sequence"}, {list, std::move(items)}};
}

// User-defined pieces of a BPE that are found in the text. Its spaces are escaped, so that a piece with one
// is never found. The longest come first.
std::vector<std::string_view> fixed_pieces(const SentencePieceSpec& spec) {
  std::vector<std::string_view> pieces;
  if (spec.kind != SentencePieceSpec::Kind::bpe) return pieces;
  for (const SentencePiece& piece : spec.pieces) {
    if (piece.type == PieceType::user_defined && piece.text.find(' ') == std::string::npos)
      pieces.push_back(piece.text);
  }
  std::ranges::stable_sort(pieces, std::ranges::greater(), &std::string_view::size);
  return pieces;
}

// Such a piece is a separate word and, with ignore_merges, a token: nothing is merged into it or with it.
Json pre_tokenizer_json(const std::vector<std::string_view>& fixed) {
  if (fixed.empty()) return nullptr;
  std::string regex;
  for (const std::string_view piece : fixed) {
    if (!regex.empty()) regex += '|';
    for (const char c : piece) {
      const bool plain = (c & 0x80) != 0 || std::isalnum(static_cast<unsigned char>(c)) != 0;
      regex += plain ? std::string(1, c) : std::string{'\\', c};
    }
  }
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json normalizer_json(const NormalizerSpec& spec) {
  Json steps = Json::array();
  if (!spec.charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(spec.charsmap)}});
  if (spec.remove_extra_whitespaces) {
    steps.push_back(replace({{"Regex", R"(\A +)"}}, ""));
    steps.push_back(replace({{"Regex", " {2,}"}}, " "));
  }
  if (spec.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceSymbol}});
  steps.push_back(replace({{"String", " "}}, kSpaceSymbol));
  if (spec.remove_extra_whitespaces)
    steps.push_back(replace({{"Regex", fmt::format("[ {}]+\\z", kSpaceSymbol)}}, ""));
  return sequence("normalizers", std::move(steps));
}

Json decoder_json(const NormalizerSpec& spec) {
  Json steps = {replace({{"String", kSpaceSymbol}}, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (spec.add_dummy_prefix)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence("decoders", std::move(steps));
}

Json post_processor_json(const SentencePieceExtras& extras) {
  if (!extras.bos) return nullptr;
  const auto& [token, id] = *extras.bos;
  const Json bos = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({bos, first})},
          {"pair", Json::array({bos, first, bos, second})},
          {"special_tokens",
           {{token, {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}}}}}};
}

int32_t unknown_id(const SentencePieceSpec& spec) {
  const auto unknown = std::ranges::find(spec.pieces, PieceType::unknown, &SentencePiece::type);
  return static_cast<int32_t>(unknown - spec.pieces.begin());
}

// A user-defined piece is always chosen: its score is more than any segmentation of it can have.
double unigram_score(const SentencePiece& piece, float highest) {
  if (piece.type != PieceType::user_defined) return piece.score;
  return static_cast<double>(piece.text.size()) * highest - 0.1;
}

Json unigram_json(const SentencePieceSpec& spec, const SentencePieceExtras& extras) {
  float highest = 0;
  for (const SentencePiece& piece : spec.pieces) {
    if (piece.type == PieceType::normal) highest = std::max(highest, piece.score);
  }
  Json vocab = Json::array();
  for (const SentencePiece& piece : spec.pieces)
    vocab.push_back(Json::array({piece.text, unigram_score(piece, highest)}));
  for (const ExportedToken& token : extras.added) {
    if (token.id >= static_cast<int32_t>(spec.pieces.size()))
      vocab.push_back(Json::array({token.content, 0.0}));
  }
  return {{"type", "Unigram"},
          {"unk_id", unknown_id(spec)},
          {"vocab", std::move(vocab)},
          {"byte_fallback", spec.byte_fallback}};
}

struct Merge {
  std::string_view left, right;
  float score;
};

std::vector<Merge> merges_of(const SentencePieceSpec& spec) {
  std::unordered_map<std::string_view, int32_t> parts;
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    if (spec.pieces[id].type == PieceType::normal) parts.emplace(spec.pieces[id].text, id);
  }
  std::vector<Merge> merges;
  for (const SentencePiece& piece : spec.pieces) {
    if (piece.type != PieceType::normal) continue;
    const std::string_view text = piece.text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (parts.contains(text.substr(0, cut)) && parts.contains(text.substr(cut)))
        merges.push_back({text.substr(0, cut), text.substr(cut), piece.score});
    }
  }
  std::ranges::stable_sort(merges, std::ranges::greater(), &Merge::score);
  return merges;
}

Json bpe_json(const SentencePieceSpec& spec, const SentencePieceExtras& extras) {
  Json::object_t vocab;
  for (size_t id = 0; id < spec.pieces.size(); ++id) vocab.emplace_back(spec.pieces[id].text, id);
  for (const ExportedToken& token : extras.added) {
    if (token.id >= static_cast<int32_t>(spec.pieces.size())) vocab.emplace_back(token.content, token.id);
  }
  Json merges = Json::array();
  for (const Merge& merge : merges_of(spec)) merges.push_back(Json::array({merge.left, merge.right}));
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", spec.pieces[static_cast<size_t>(unknown_id(spec))].text},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", spec.byte_fallback},
          {"ignore_merges", !fixed_pieces(spec).empty()},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string sentencepiece_json(const SentencePieceSpec& spec, const SentencePieceExtras& extras) {
  check(spec);
  const bool unigram = spec.kind == SentencePieceSpec::Kind::unigram;
  std::vector<ExportedToken> added = extras.added;
  const auto is_added = [&added](int32_t id) {
    return std::ranges::find(added, id, &ExportedToken::id) != added.end();
  };
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    const SentencePiece& piece = spec.pieces[id];
    const bool control = piece.type == PieceType::control || piece.type == PieceType::unknown;
    if (control && !is_added(static_cast<int32_t>(id)))
      added.push_back({piece.text, static_cast<int32_t>(id)});
  }
  std::ranges::sort(added, {}, &ExportedToken::id);
  return exported_tokenizer_json(added,
                                 {{"normalizer", normalizer_json(spec.normalizer)},
                                  {"pre_tokenizer", pre_tokenizer_json(fixed_pieces(spec))},
                                  {"post_processor", post_processor_json(extras)},
                                  {"decoder", decoder_json(spec.normalizer)}},
                                 unigram ? unigram_json(spec, extras) : bpe_json(spec, extras));
}

}  // namespace teratron
