#include "teratron/tokenizer/bpe/tiktoken_tokenizer.h"

#include <charconv>
#include <unordered_set>

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/tokenizer/base64.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"
#include "teratron/tokenizer/bpe/vocab_files.h"
#include "teratron/tokenizer/hf/exported_json.h"
#include "teratron/tokenizer/json_problem.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {

using TokenRanks = std::vector<std::pair<std::string, int64_t>>;  // bytes of a token and its rank

/// The ranks, and the options with what the file says of them.
struct TiktokenFile {
  TokenRanks ranks;
  TiktokenOptions options;
  bool is_tekken = false;
};

namespace {

constexpr int64_t kDefaultVocabSize = int64_t{1} << 17;
constexpr std::string_view kPatternV2 =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_json(const TiktokenOptions& options) {
  return options.file.ends_with(".json");
}

std::string split_regex(const TiktokenOptions& options) {
  if (options.pattern == "v1") return std::string(pattern_regex(SplitPattern::tiktoken_v1));
  return options.pattern == "v2" ? std::string(kPatternV2) : options.pattern;
}

/// Strict: groups of four, padding only at the end.
[[noreturn]] void reject(const std::string& where, std::string what) {
  throw data_error({.what = std::move(what), .where = where, .fix = "use the tokenizer's original file"});
}

TokenRanks ranks_of(simdjson::dom::array tokens, const std::string& path) {
  TokenRanks ranks;
  for (const simdjson::dom::element token : tokens) {
    const auto number = static_cast<int64_t>(ranks.size());
    int64_t rank = -1;
    std::string_view text;
    if (token["rank"].get(rank) || rank != number || token["token_bytes"].get(text))
      reject(path, fmt::format("entry {} has no \"rank\": {} and \"token_bytes\"", number, number));
    auto bytes = decode_base64(text);
    if (!bytes || bytes->empty())
      reject(path, fmt::format("the bytes of token {} are not valid base64", number));
    ranks.emplace_back(*std::move(bytes), rank);
  }
  return ranks;
}

/// The special tokens of tekken.json by rank; up to version 7 it may leave them out.
std::vector<std::string> tekken_special_tokens(simdjson::dom::object file, const std::string& path) {
  std::vector<std::string> names;
  simdjson::dom::array tokens;
  const auto missing = file["special_tokens"].get(tokens);
  if (missing == simdjson::NO_SUCH_FIELD || file["special_tokens"].is_null()) {
    for (const char* const name : {"<unk>",
                                   "<s>",
                                   "</s>",
                                   "[INST]",
                                   "[/INST]",
                                   "[AVAILABLE_TOOLS]",
                                   "[/AVAILABLE_TOOLS]",
                                   "[TOOL_RESULTS]",
                                   "[/TOOL_RESULTS]",
                                   "[TOOL_CALLS]",
                                   "[IMG]",
                                   "<pad>",
                                   "[IMG_BREAK]",
                                   "[IMG_END]",
                                   "[PREFIX]",
                                   "[MIDDLE]",
                                   "[SUFFIX]",
                                   "[SYSTEM_PROMPT]",
                                   "[/SYSTEM_PROMPT]",
                                   "[TOOL_CONTENT]"})
      names.emplace_back(name);
    return names;
  }
  if (missing) reject(path, "\"special_tokens\" is not a list");
  for (const simdjson::dom::element token : tokens) {
    int64_t rank = -1;
    std::string_view text;
    if (token["rank"].get(rank) || token["token_str"].get(text) || rank != static_cast<int64_t>(names.size()))
      reject(path, fmt::format("special token {} has no \"rank\": {} and \"token_str\"", names.size(),
                               names.size()));
    names.emplace_back(text);
  }
  return names;
}

/// What the options leave at Megatron-LM's defaults is the file's.
TiktokenOptions with_tekken_config(TiktokenOptions options, simdjson::dom::object file) {
  simdjson::dom::object config;
  std::string_view pattern;
  int64_t vocab_size = 0, special_count = 0;
  if (file["config"].get(config) || config["pattern"].get(pattern) ||
      config["default_vocab_size"].get(vocab_size) ||
      config["default_num_special_tokens"].get(special_count)) {
    reject(options.file,
           "\"config\" has no \"pattern\", \"default_vocab_size\" and \"default_num_special_tokens\"");
  }
  const TiktokenOptions usual;
  if (options.pattern == usual.pattern) options.pattern = pattern;
  if (options.vocab_size == usual.vocab_size) options.vocab_size = vocab_size;
  if (options.special_count == usual.special_count) options.special_count = special_count;
  if (options.special_tokens.empty()) options.special_tokens = tekken_special_tokens(file, options.file);
  return options;
}

TiktokenFile read_json_ranks(const TiktokenOptions& options) {
  const simdjson::padded_string json(read_text_file(options.file));
  simdjson::dom::parser parser;
  simdjson::dom::element top;
  simdjson::dom::array tokens;
  if (const auto error = parser.parse(json).get(top))
    reject(options.file, fmt::format("not a JSON list of tokens ({})", json_problem(error)));
  if (simdjson::dom::object file; !top.get(file) && !file["vocab"].get(tokens))
    return {ranks_of(tokens, options.file), with_tekken_config(options, file), true};
  if (top.get(tokens)) reject(options.file, "not a JSON list of tokens, nor an object with one as \"vocab\"");
  return {ranks_of(tokens, options.file), options};
}

TokenRanks read_line_ranks(const std::string& path) {
  const std::string text = read_text_file(path);
  TokenRanks ranks;
  int64_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    auto bytes = decode_base64(line.substr(0, space));
    int64_t rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!bytes || bytes->empty() || error != std::errc() || end != digits.data() + digits.size() ||
        rank < 0 || rank > INT32_MAX / 2) {
      reject(fmt::format("{}:{}", path, number), "is not a base64 token, a space and a rank");
    }
    ranks.emplace_back(*std::move(bytes), rank);
  }
  return ranks;
}

/// Sorted by rank.
TiktokenFile read_ranks(const TiktokenOptions& given) {
  TiktokenFile file =
      is_json(given) ? read_json_ranks(given) : TiktokenFile{read_line_ranks(given.file), given};
  TokenRanks& ranks = file.ranks;
  const TiktokenOptions& options = file.options;
  if (is_json(options)) {
    const int64_t others =
        (options.vocab_size > 0 ? options.vocab_size : kDefaultVocabSize) - options.special_count;
    if (options.special_count < 0 || others < 256 || others > static_cast<int64_t>(ranks.size())) {
      throw config_error(
          {.what =
               fmt::format("cannot build a vocabulary of {} special and {} other tokens from the {} tokens "
                           "of the file",
                           options.special_count, others, ranks.size()),
           .where = "--vocab-size",
           .fix = "use a size for which size - --tiktoken-num-special-tokens is from 256 to the number of "
                  "tokens in the file"});
    }
    ranks.resize(static_cast<size_t>(others));
  }
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return file;
}

/// Each split of a token into two tokens is a merge.
BpeConfig bpe_config(const TiktokenFile& file) {
  const auto& [ranks, options, is_tekken] = file;
  const int64_t first_id = is_json(options) ? options.special_count : 0;
  BpeConfig config{.vocab = {},
                   .merges = {},
                   .unk_token = {},
                   .ignore_merges = true,
                   .shared_ranks = true,
                   .where = options.file};
  std::unordered_set<std::string_view> known;
  for (const auto& [bytes, rank] : ranks) {
    config.vocab.emplace_back(byte_encode(bytes), static_cast<int32_t>(rank + first_id));
    known.insert(bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    if (!known.contains(std::string_view(&value, 1)))
      reject(options.file, fmt::format("has no token for the byte {}", byte));
  }
  for (const auto& [bytes, rank] : ranks) {
    const std::string_view token = bytes;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if (known.contains(token.substr(0, cut)) && known.contains(token.substr(cut)))
        config.merges.emplace_back(byte_encode(token.substr(0, cut)), byte_encode(token.substr(cut)));
    }
  }
  return config;
}

std::vector<std::string> special_names(const TiktokenFile& file) {
  const TiktokenOptions& options = file.options;
  std::vector<std::string> defaults = {"<|endoftext|>"};
  if (is_json(options)) defaults = {"<unk>", "<s>", "</s>"};
  if (is_json(options) && options.head && !file.is_tekken)
    defaults.insert(defaults.end(), {"<mask>", "<pad>", "<cls>", "<sep>"});
  std::vector<std::string> names = options.special_tokens.empty() ? defaults : options.special_tokens;
  const auto fail = [](std::string what) {
    throw config_error({.what = std::move(what),
                        .where = "--tokenizer-special-tokens",
                        .fix = "list each token once, include <unk>, <s> and </s>, and list at most "
                               "--tiktoken-num-special-tokens tokens"});
  };
  if (is_json(options)) {
    for (const std::string& token : defaults) {
      if (std::find(names.begin(), names.end(), token) == names.end())
        fail(fmt::format("{} is missing", token));
    }
    if (static_cast<int64_t>(names.size()) > options.special_count)
      fail(fmt::format("{} special tokens are more than {}", names.size(), options.special_count));
    for (auto id = static_cast<int64_t>(names.size()); id < options.special_count; ++id)
      names.push_back(fmt::format("<SPECIAL_{}>", id));
  }
  const std::unordered_set<std::string_view> unique(names.begin(), names.end());
  if (unique.size() < names.size() || unique.contains("")) fail("a special token is empty or listed twice");
  return names;
}

// All tokens by id: the special ones are first in .json, else last.
std::map<int32_t, std::string> special_tokens_of(const TiktokenFile& file, int32_t first_free) {
  std::map<int32_t, std::string> tokens;
  int32_t id = is_json(file.options) ? 0 : first_free;
  for (std::string& name : special_names(file)) tokens.emplace(id++, std::move(name));
  return tokens;
}

}  // namespace

TiktokenTokenizer::TiktokenTokenizer(const TiktokenOptions& options)
    : TiktokenTokenizer(read_ranks(options)) {}

TiktokenTokenizer::TiktokenTokenizer(const TiktokenFile& file) : ByteLevelTokenizer(bpe_config(file)) {
  const TiktokenOptions& options = file.options;
  const std::string pattern = split_regex(options);
  if (const auto known = known_pattern(pattern)) {
    steps_ = {{.pattern = known}};
  } else {
    // Only matches are tokens: tiktoken drops the gaps.
    steps_ = {{.regex = std::make_shared<Regex>(pattern, "--tiktoken-pattern", RegexSyntax::rust),
               .behavior = SplitBehavior::removed,
               .invert = true}};
  }
  std::vector<AddedToken> tokens;
  std::unordered_map<std::string, int32_t> ids;
  for (const auto& [id, name] : special_tokens_of(file, model_.id_bound())) {
    tokens.push_back({.content = name, .id = id, .special = true});
    added_content_.emplace(id, name);
    special_ids_.insert(id);
    ids.emplace(name, id);
    vocab_size_ = std::max<int64_t>(vocab_size_, id + 1);
  }
  if (options.head) added_ = AddedVocabulary(std::move(tokens));
  special_ = find_special_tokens(
      {.bos = "<s>", .eos = "</s>", .pad = "<pad>", .cls = "<cls>", .sep = "<sep>", .mask = "<mask>"},
      [&](const std::string& name) {
        const auto found = ids.find(name);
        return found == ids.end() ? std::nullopt : std::optional(found->second);
      });
  if (!is_json(options) && options.vocab_size > 0 && options.vocab_size != vocab_size_) {
    throw config_error({.what = fmt::format("the file and the special tokens have {} ids, not {}",
                                            vocab_size_, options.vocab_size),
                        .where = "--vocab-size",
                        .fix = "remove --vocab-size"});
  }
}

std::map<std::string, std::string> hf_files_of_tiktoken(const TiktokenOptions& given) {
  using Json = nlohmann::ordered_json;
  const TiktokenFile file = read_ranks(given);
  const TiktokenOptions& options = file.options;
  const TiktokenTokenizer tokenizer(file);
  BpeConfig config = bpe_config(file);
  int32_t bound = 0;
  for (const auto& [token, id] : config.vocab) bound = std::max(bound, id + 1);
  const std::map<int32_t, std::string> special = special_tokens_of(file, bound);
  std::vector<ExportedToken> added;
  for (const auto& [id, name] : special) {
    added.push_back({name, id});
    config.vocab.emplace_back(name, id);  // else ids would be counted from the size of the vocabulary
  }
  Json::object_t vocab;
  for (const auto& [token, id] : config.vocab) vocab.emplace_back(token, id);
  Json merges = Json::array();
  for (const auto& [left, right] : config.merges) merges.push_back(Json::array({left, right}));
  const Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", split_regex(options)}}},
                      {"behavior", "Removed"},
                      {"invert", true}};
  const Json parts = {
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
      {"decoder", bytes}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", true},
                      {"vocab", std::move(vocab)},
                      {"merges", std::move(merges)}};
  return {{"tokenizer.json", exported_tokenizer_json(added, parts, model)},
          {"tokenizer_config.json", exported_tokenizer_config(tokenizer.special(), special)}};
}

}  // namespace teratron
