#include "teratron/tokenizer/bpe/tiktoken_tokenizer.h"

#include <charconv>
#include <unordered_set>

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/byte_alphabet.h"
#include "teratron/tokenizer/bpe/vocab_files.h"

namespace teratron {
namespace {

constexpr int64_t kUsualVocabulary = int64_t{1} << 17;
constexpr std::string_view kPatternV2 =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Ranks = std::vector<std::pair<std::string, int64_t>>;  // bytes of a token and its rank

bool is_json(const TiktokenOptions& options) {
  return options.file.ends_with(".json");
}

std::string pattern_of(const TiktokenOptions& options) {
  if (options.pattern == "v1") return std::string(pattern_regex(SplitPattern::tiktoken_v1));
  return options.pattern == "v2" ? std::string(kPatternV2) : options.pattern;
}

/// Strict: whole groups of four, padding only at the end.
std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t group = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_padding = i + padding >= text.size();
    const size_t digit = is_padding ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    group = group << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(group >> shift & 0xff));
    group = 0;
  }
  for (size_t i = 0; i < padding; ++i) bytes.pop_back();
  return bytes;
}

[[noreturn]] void reject(const std::string& where, std::string what) {
  throw data_error({.what = std::move(what), .where = where, .fix = "use the tokenizer's original file"});
}

Ranks read_json_ranks(const std::string& path) {
  const simdjson::padded_string json(read_text_file(path));
  simdjson::dom::parser parser;
  simdjson::dom::array tokens;
  if (const auto error = parser.parse(json).get(tokens))
    reject(path, fmt::format("not a JSON list of tokens ({})", simdjson::error_message(error)));
  Ranks ranks;
  for (const simdjson::dom::element token : tokens) {
    const auto number = static_cast<int64_t>(ranks.size());
    int64_t rank = -1;
    std::string_view text;
    if (token["rank"].get(rank) || rank != number || token["token_bytes"].get(text))
      reject(path, fmt::format("entry {} does not hold \"rank\": {} and \"token_bytes\"", number, number));
    auto bytes = decode_base64(text);
    if (!bytes || bytes->empty()) reject(path, fmt::format("the bytes of token {} are not base64", number));
    ranks.emplace_back(*std::move(bytes), rank);
  }
  return ranks;
}

Ranks read_line_ranks(const std::string& path) {
  const std::string text = read_text_file(path);
  Ranks ranks;
  int64_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (line.empty()) continue;
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string_view digits = line.substr(std::min(blank + 1, line.size()));
    auto bytes = decode_base64(line.substr(0, blank));
    int64_t rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!bytes || bytes->empty() || error != std::errc() || end != digits.data() + digits.size() ||
        rank < 0 || rank > INT32_MAX / 2) {
      reject(fmt::format("{}:{}", path, number), "is not a token in base64, a blank and its rank");
    }
    ranks.emplace_back(*std::move(bytes), rank);
  }
  return ranks;
}

/// Tokens by ascending rank.
Ranks read_ranks(const TiktokenOptions& options) {
  Ranks ranks = is_json(options) ? read_json_ranks(options.file) : read_line_ranks(options.file);
  if (is_json(options)) {
    const int64_t wanted =
        (options.vocab_size > 0 ? options.vocab_size : kUsualVocabulary) - options.special_count;
    if (options.special_count < 0 || wanted < 256 || wanted > static_cast<int64_t>(ranks.size())) {
      throw config_error(
          {.what = fmt::format("a vocabulary of {} special and {} other tokens is not possible with "
                               "the {} tokens of the file",
                               options.special_count, wanted, ranks.size()),
           .where = "--vocab-size",
           .fix = "the size minus --tiktoken-num-special-tokens must be from 256 to the tokens of "
                  "the file"});
    }
    ranks.resize(static_cast<size_t>(wanted));
  }
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return ranks;
}

/// Every way to cut a token into two tokens is a merge into it.
BpeSpec bpe_of_ranks(const Ranks& ranks, const TiktokenOptions& options) {
  const int64_t first_id = is_json(options) ? options.special_count : 0;
  BpeSpec spec{.vocab = {},
               .merges = {},
               .unk_token = {},
               .ignore_merges = true,
               .shared_ranks = true,
               .where = options.file};
  std::unordered_set<std::string_view> known;
  for (const auto& [bytes, rank] : ranks) {
    spec.vocab.emplace_back(spell_bytes(bytes), static_cast<int32_t>(rank + first_id));
    known.insert(bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    if (!known.contains(std::string_view(&value, 1)))
      reject(options.file, fmt::format("has no token for byte {}", byte));
  }
  for (const auto& [bytes, rank] : ranks) {
    const std::string_view token = bytes;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if (known.contains(token.substr(0, cut)) && known.contains(token.substr(cut)))
        spec.merges.emplace_back(spell_bytes(token.substr(0, cut)), spell_bytes(token.substr(cut)));
    }
  }
  return spec;
}

std::vector<std::string> special_names(const TiktokenOptions& options) {
  std::vector<std::string> usual = {"<|endoftext|>"};
  if (is_json(options)) usual = {"<unk>", "<s>", "</s>"};
  if (is_json(options) && options.head) usual.insert(usual.end(), {"<mask>", "<pad>", "<cls>", "<sep>"});
  std::vector<std::string> names = options.special_tokens.empty() ? usual : options.special_tokens;
  const auto fail = [](std::string what) {
    throw config_error({.what = std::move(what),
                        .where = "--tokenizer-special-tokens",
                        .fix = "name each token once, <unk>, <s> and </s> among them, and no more than "
                               "--tiktoken-num-special-tokens"});
  };
  if (is_json(options)) {
    for (const std::string& token : usual) {
      if (std::find(names.begin(), names.end(), token) == names.end())
        fail(fmt::format("{} is missing", token));
    }
    if (static_cast<int64_t>(names.size()) > options.special_count)
      fail(fmt::format("{} special tokens are more than {}", names.size(), options.special_count));
    for (auto id = static_cast<int64_t>(names.size()); id < options.special_count; ++id)
      names.push_back(fmt::format("<SPECIAL_{}>", id));
  }
  const std::unordered_set<std::string_view> unique(names.begin(), names.end());
  if (unique.size() < names.size() || unique.contains("")) fail("a special token is empty or named twice");
  return names;
}

}  // namespace

TiktokenTokenizer::TiktokenTokenizer(const TiktokenOptions& options)
    : model_(bpe_of_ranks(read_ranks(options), options)), caches_(model_), vocab_size_(model_.id_bound()) {
  const std::string pattern = pattern_of(options);
  known_pattern_ = recognise_pattern(pattern);
  if (!known_pattern_) regex_.emplace(pattern, "--tiktoken-pattern");
  name_special_tokens(special_names(options), is_json(options) ? 0 : model_.id_bound(), options.head);
  if (!is_json(options) && options.vocab_size > 0 && options.vocab_size != vocab_size_) {
    throw config_error({.what = fmt::format("the file and the special tokens give {} ids, not {}",
                                            vocab_size_, options.vocab_size),
                        .where = "--vocab-size",
                        .fix = "leave it out"});
  }
}

void TiktokenTokenizer::name_special_tokens(const std::vector<std::string>& names, int32_t first_id,
                                            bool literal) {
  std::vector<AddedToken> tokens;
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto id = first_id + static_cast<int32_t>(i);
    tokens.push_back({.content = names[i], .id = id, .special = true});
    special_content_.emplace(id, names[i]);
    ids.emplace(names[i], id);
    vocab_size_ = std::max<int64_t>(vocab_size_, id + 1);
  }
  if (literal) literal_ = AddedTokenMatcher(std::move(tokens));
  const auto id_of = [&](std::string_view name) {
    const auto found = ids.find(name);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  special_.bos = id_of("<s>");
  special_.eos = id_of("</s>");
  special_.mask = id_of("<mask>");
  special_.pad = id_of("<pad>");
  special_.cls = id_of("<cls>");
  special_.sep = id_of("<sep>");
  for (const char* const usual : {"</s>", "<|endoftext|>", "<|end_of_text|>"}) {
    if (!special_.eod) special_.eod = id_of(usual);
  }
}

void TiktokenTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!unicode::is_valid(text)) return encode(unicode::replace_invalid(text), ids);
  IdSink sink(caches_, ids);
  encode_parts({text}, sink);
}

std::vector<TokenSpan> TiktokenTokenizer::encode_with_offsets(std::string_view text) const {
  const AlignedText tracked = AlignedText::track(text);
  SpanSink sink(model_);
  encode_parts(tracked.view(), sink);
  return sink.take();
}

void TiktokenTokenizer::encode_parts(AlignedView text, TokenSink& sink) const {
  for (const auto& part : literal_.split(text.text)) {
    const AlignedView view = text.part(part.text);
    if (part.id >= 0) {
      sink.token(part.id, view);
    } else if (known_pattern_) {
      sink.words(*known_pattern_, view);
    } else {
      // What the pattern leaves out is left out, as by tiktoken.
      for (const Regex::Piece& piece : regex_->find_all(part.text)) {
        if (piece.is_match) sink.word(view.part(piece.text));
      }
    }
  }
}

}  // namespace teratron
