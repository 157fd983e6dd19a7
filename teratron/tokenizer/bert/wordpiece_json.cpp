#include "teratron/tokenizer/bert/wordpiece_json.h"

#include <algorithm>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using Json = nlohmann::ordered_json;

WordPieceVocabulary read_vocabulary(const JsonFields& json, JsonFields::Object model) {
  WordPieceVocabulary vocabulary{.unknown = json.require_string(model, "unk_token"), .where = json.path()};
  const auto tokens = json.large_object(json.require(model, "vocab"), "vocab");
  // Ids may have gaps for added tokens, but the table by id must stay proportional to the file.
  const int64_t limit = static_cast<int64_t>(tokens.size()) * 8 + 65536;
  std::unordered_set<std::string_view> seen;
  std::unordered_set<int32_t> ids;
  for (const auto& [token, value] : tokens) {
    const int32_t id = json.id(value, token);
    if (id >= limit) {
      json.reject(
          fmt::format("id {} of token '{}' is out of range (0 to {})", id, printable(token), limit - 1));
    }
    if (!seen.insert(token).second) json.reject(fmt::format("token '{}' appears twice", printable(token)));
    if (!ids.insert(id).second) json.reject(fmt::format("id {} belongs to two tokens", id));
    vocabulary.tokens.emplace_back(std::string(token), id);
  }
  return vocabulary;
}

size_t read_max_characters(const JsonFields& json, JsonFields::Object model) {
  const auto value = JsonFields::field(model, "max_input_chars_per_word");
  int64_t result = 100;
  if (value && (value->get(result) || result < 0))
    json.reject("'max_input_chars_per_word' is not a number of characters");
  return static_cast<size_t>(result);
}

BertRules read_normalizer(const JsonFields& json, JsonFields::Object top) {
  const auto part = JsonFields::field(top, "normalizer");
  if (!part) return {.clean_text = false, .handle_chinese_chars = false, .lowercase = false};
  const auto normalizer = json.object(*part, "normalizer");
  const std::string type = json.require_string(normalizer, "type");
  if (type != "BertNormalizer") json.unsupported("normalizer of WordPiece", type);
  BertRules rules{.clean_text = json.boolean(normalizer, "clean_text", true),
                  .handle_chinese_chars = json.boolean(normalizer, "handle_chinese_chars", true),
                  .lowercase = json.boolean(normalizer, "lowercase", true)};
  if (JsonFields::field(normalizer, "strip_accents"))
    rules.strip_accents = json.boolean(normalizer, "strip_accents", false);
  return rules;
}

void check_pre_tokenizer(const JsonFields& json, JsonFields::Object top) {
  const auto step = json.object(json.require(top, "pre_tokenizer"), "pre_tokenizer");
  const std::string type = json.require_string(step, "type");
  if (type != "BertPreTokenizer") json.unsupported("pre-tokenizer of WordPiece", type);
}

WordPieceDecoder read_decoder(const JsonFields& json, JsonFields::Object top) {
  const auto part = JsonFields::field(top, "decoder");
  if (!part) return WordPieceDecoder::tokens;
  const auto decoder = json.object(*part, "decoder");
  const std::string type = json.require_string(decoder, "type");
  if (type != "WordPiece") json.unsupported("decoder of WordPiece", type);
  const auto prefix = JsonFields::field(decoder, "prefix");
  if (prefix && json.string(*prefix, "prefix") != WordPiece::kContinuingPrefix)
    json.unsupported("prefix of the decoder", json.string(*prefix, "prefix"));
  return json.boolean(decoder, "cleanup", true) ? WordPieceDecoder::cleanup : WordPieceDecoder::wordpiece;
}

SpecialTokens special_tokens(SpecialTokensMap names, const FindToken& find) {
  const std::pair<std::string*, const char*> usual[] = {
      {&names.cls, "[CLS]"}, {&names.sep, "[SEP]"}, {&names.pad, "[PAD]"}, {&names.mask, "[MASK]"}};
  for (const auto& [name, token] : usual) {
    if (name->empty()) *name = token;
  }
  SpecialTokens special = find_special_tokens(names, find);
  if (!special.bos) special.bos = special.cls;
  if (!special.eos) special.eos = special.sep;
  if (!special.eod) special.eod = special.eos;
  return special;
}

Json added_tokens_json(const WordPieceConfig& config, std::span<const std::string> special) {
  std::vector<std::pair<int32_t, std::string>> tokens;
  const std::unordered_set<std::string> wanted(special.begin(), special.end());
  for (const auto& [token, id] : config.vocabulary.tokens) {
    if (wanted.contains(token)) tokens.emplace_back(id, token);
  }
  std::ranges::sort(tokens);
  Json added = Json::array();
  for (const auto& [id, token] : tokens) {
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

Json post_processor_json(const WordPieceConfig& config) {
  const auto token = [](const char* name, int type) {
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto entry = [](const char* name, int32_t id) {
    return Json{{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({token("[CLS]", 0), text("A", 0), token("[SEP]", 0)})},
          {"pair", Json::array({token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1),
                                token("[SEP]", 1)})},
          {"special_tokens",
           {{"[CLS]", entry("[CLS]", *config.special.cls)}, {"[SEP]", entry("[SEP]", *config.special.sep)}}}};
}

/// In the order of the ids. Among equal tokens only the last one, whose id counts.
Json vocab_json(const WordPieceVocabulary& vocabulary) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (const auto& [token, id] : vocabulary.tokens) ids.insert_or_assign(token, id);
  Json::object_t vocab;
  for (const auto& [token, id] : vocabulary.tokens) {
    if (ids.at(token) == id) vocab.emplace_back(token, id);
  }
  return vocab;
}

}  // namespace

WordPieceConfig read_wordpiece_json(const JsonFields& json, JsonFields::Object top, SpecialTokensMap names,
                                    bool add_special_tokens) {
  const auto model = json.object(json.require(top, "model"), "model");
  if (const auto prefix = JsonFields::field(model, "continuing_subword_prefix");
      prefix && json.string(*prefix, "continuing_subword_prefix") != WordPiece::kContinuingPrefix)
    json.unsupported("continuing_subword_prefix", json.string(*prefix, "continuing_subword_prefix"));
  check_pre_tokenizer(json, top);
  WordPieceConfig config{.vocabulary = read_vocabulary(json, model),
                         .max_characters = read_max_characters(json, model),
                         .rules = read_normalizer(json, top),
                         .decoder = read_decoder(json, top)};
  std::unordered_map<std::string, int32_t> ids;
  std::unordered_set<int32_t> used;
  int32_t bound = 0;
  for (const auto& [token, id] : config.vocabulary.tokens) {
    ids.emplace(token, id);
    used.insert(id);
    bound = std::max(bound, id + 1);
  }
  const FindToken in_model = [&ids](const std::string& token) {
    const auto found = ids.find(token);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  const auto normalized = [&config](const std::string& content) {
    return std::string(bert_normalize({content}, config.rules).view().text);
  };
  AddedTokens added = check_added_tokens(
      read_added_tokens(json, top),
      {.id_of = in_model, .has_id = [&used](int32_t id) { return used.contains(id); }, .id_bound = bound},
      normalized, json.path());
  config.vocab_size = added.vocab_size;
  PostProcessor processor = read_post_processor(json, top);
  check_post_processor(processor, config.vocab_size, json.path());
  if (add_special_tokens) {
    config.prefix = std::move(processor.prefix);
    config.suffix = std::move(processor.suffix);
  }
  config.special = special_tokens(std::move(names), [&](const std::string& content) {
    const auto id = added.id_of(content);
    return id ? id : in_model(content);
  });
  config.added = std::move(added.raw);
  config.normalized_added = std::move(added.normalized);
  config.added_content = std::move(added.content);
  return config;
}

std::string wordpiece_json(const WordPieceConfig& config, std::span<const std::string> special) {
  const BertRules& rules = config.rules;
  Json strip = nullptr;
  if (rules.strip_accents) strip = *rules.strip_accents;
  const Json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens_json(config, special)},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", rules.clean_text},
        {"handle_chinese_chars", rules.handle_chinese_chars},
        {"strip_accents", strip},
        {"lowercase", rules.lowercase}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor", post_processor_json(config)},
      {"decoder", {{"type", "WordPiece"}, {"prefix", WordPiece::kContinuingPrefix}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", config.vocabulary.unknown},
        {"continuing_subword_prefix", WordPiece::kContinuingPrefix},
        {"max_input_chars_per_word", config.max_characters},
        {"vocab", vocab_json(config.vocabulary)}}}};
  return file.dump(2) + "\n";
}

}  // namespace teratron
