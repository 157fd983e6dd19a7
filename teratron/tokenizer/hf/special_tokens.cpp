#include "teratron/tokenizer/hf/special_tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// The text of a token, a string or an object with "content"; nothing for other values.
std::optional<std::string> content_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  const auto content = value.is_object() ? value.find("content") : value.end();
  if (content == value.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

// Not with simdjson, which refuses integers beyond 64 bits: transformers writes 10^30 for model_max_length.
void read_special_tokens(const std::string& path, SpecialTokensMap& names) {
  if (!std::filesystem::exists(path)) return;
  const auto top = nlohmann::json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  if (!top.is_object()) throw data_error({.what = "not a JSON object", .where = path});
  const std::pair<const char*, std::string*> keys[] = {
      {"bos_token", &names.bos}, {"eos_token", &names.eos}, {"pad_token", &names.pad},
      {"cls_token", &names.cls}, {"sep_token", &names.sep}, {"mask_token", &names.mask}};
  for (const auto& [key, name] : keys) {
    const auto found = top.find(key);
    if (const auto text = found == top.end() ? std::nullopt : content_of(*found)) *name = *text;
  }
  // transformers 5 writes the second name.
  for (const char* const key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto additional = top.find(key);
    if (additional == top.end() || !additional->is_array()) continue;
    names.additional.clear();
    for (const nlohmann::json& item : *additional) names.additional.push_back(content_of(item).value_or(""));
  }
}

class PostProcessorReader {
 public:
  explicit PostProcessorReader(const JsonFields& json) : json_(json) {}
  void read(object processor);
  PostProcessor take() { return std::move(result_); }

 private:
  void read_template(object processor);
  std::unordered_map<std::string, std::vector<int32_t>> template_ids(object processor) const;

  const JsonFields& json_;
  PostProcessor result_;
};

std::unordered_map<std::string, std::vector<int32_t>> PostProcessorReader::template_ids(
    object processor) const {
  std::unordered_map<std::string, std::vector<int32_t>> ids;
  const auto tokens = JsonFields::field(processor, "special_tokens");
  if (!tokens) return ids;
  for (const auto& [name, value] : json_.object(*tokens, "special_tokens")) {
    for (const element item : json_.require_array(json_.object(value, "special_tokens"), "ids"))
      ids[std::string(name)].push_back(json_.id(item, name));
  }
  return ids;
}

void PostProcessorReader::read_template(object processor) {
  const auto special = template_ids(processor);
  bool after_text = false;
  std::vector<int32_t> before, after;
  for (const element item : json_.require_array(processor, "single")) {
    const object piece = json_.object(item, "single");
    const auto token = JsonFields::field(piece, "SpecialToken");
    if (!token) {
      if (!JsonFields::field(piece, "Sequence") || after_text)
        json_.reject("'single' of the post-processor must contain the text once");
      after_text = true;
      continue;
    }
    const std::string name = json_.require_string(json_.object(*token, "SpecialToken"), "id");
    const auto ids = special.find(name);
    if (ids == special.end())
      json_.reject(fmt::format("the post-processor's token '{}' has no ids", printable(name)));
    auto& side = after_text ? after : before;
    side.insert(side.end(), ids->second.begin(), ids->second.end());
  }
  if (!after_text) json_.reject("'single' of the post-processor does not contain the text");
  result_.prefix.insert(result_.prefix.begin(), before.begin(), before.end());
  result_.suffix.insert(result_.suffix.end(), after.begin(), after.end());
}

void PostProcessorReader::read(object processor) {
  const std::string type = json_.require_string(processor, "type");
  const bool trims = type == "ByteLevel" || type == "RobertaProcessing";
  if (trims && json_.boolean(processor, "trim_offsets", true))
    result_.trim = TrimOffsets{json_.boolean(processor, "add_prefix_space", true)};
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const element part : json_.require_array(processor, "processors"))
      read(json_.object(part, "processors"));
  } else if (type == "TemplateProcessing") {
    read_template(processor);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const auto second = [&](const char* key) {
      const array pair = json_.require_array(processor, key);
      if (pair.size() != 2) json_.reject(fmt::format("'{}' is not a pair of token and id", key));
      return json_.id(pair.at(1).value(), key);
    };
    result_.prefix.insert(result_.prefix.begin(), second("cls"));
    result_.suffix.push_back(second("sep"));
  } else {
    json_.unsupported("post-processor", type);
  }
}

}  // namespace

void read_special_tokens_map(const std::string& directory, SpecialTokensMap& names) {
  read_special_tokens(directory + "/special_tokens_map.json", names);
  read_special_tokens(directory + "/tokenizer_config.json", names);
}

SpecialTokensMap read_special_tokens_map(const std::string& directory) {
  SpecialTokensMap names;
  read_special_tokens_map(directory, names);
  return names;
}

SpecialTokens find_special_tokens(const SpecialTokensMap& map, const FindToken& find) {
  const auto id_of = [&](const std::string& content) {
    return content.empty() ? std::nullopt : find(content);
  };
  SpecialTokens special;
  special.bos = id_of(map.bos);
  special.eos = special.eod = id_of(map.eos);
  special.pad = id_of(map.pad);
  special.cls = id_of(map.cls);
  special.sep = id_of(map.sep);
  special.mask = id_of(map.mask);
  for (const std::string& content : map.additional) {
    if (const auto id = id_of(content)) special.additional.push_back(*id);
  }
  for (const char* const content : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    if (!special.eod) special.eod = id_of(content);
  }
  return special;
}

std::vector<AddedToken> read_added_tokens(const JsonFields& json, JsonFields::Object top) {
  std::vector<AddedToken> tokens;
  if (!JsonFields::field(top, "added_tokens")) return tokens;
  for (const element item : json.require_array(top, "added_tokens")) {
    const object token = json.object(item, "added_tokens");
    AddedToken added{.content = json.require_string(token, "content"),
                     .id = json.id(json.require(token, "id"), "id"),
                     .single_word = json.boolean(token, "single_word", false),
                     .lstrip = json.boolean(token, "lstrip", false),
                     .rstrip = json.boolean(token, "rstrip", false),
                     .special = json.boolean(token, "special", false)};
    added.normalized = json.boolean(token, "normalized", !added.special);
    tokens.push_back(std::move(added));
  }
  return tokens;
}

std::optional<int32_t> AddedTokens::id_of(const std::string& token) const {
  const auto found = std::ranges::find(content, token, [](const auto& entry) { return entry.second; });
  return found == content.end() ? std::nullopt : std::optional(found->first);
}

AddedTokens check_added_tokens(const std::vector<AddedToken>& added, const ModelVocabulary& model,
                               const std::function<std::string(const std::string&)>& normalize,
                               const std::string& where) {
  const int64_t limit = model.id_bound + static_cast<int64_t>(added.size()) * 8 + 65536;
  AddedTokens result{.vocab_size = model.id_bound};
  std::vector<AddedToken> raw, normalized;
  std::unordered_map<std::string, int32_t> ids;
  for (const AddedToken& token : added) {
    const auto reject = [&](std::string what) {
      throw data_error(
          {.what = fmt::format("added token '{}' {}", printable(token.content), what), .where = where});
    };
    if (token.content.empty()) reject("is empty");
    if (token.id >= limit) reject(fmt::format("has an id out of range ({}, limit {})", token.id, limit));
    if (const auto in_model = model.id_of(token.content); in_model && *in_model != token.id) {
      reject(fmt::format("has the id {} but is {} in the vocabulary", token.id, *in_model));
    } else if (!in_model && model.has_id(token.id)) {
      reject(fmt::format("has the id {} of another token", token.id));
    }
    const auto [known, is_new] = ids.emplace(token.content, token.id);
    if (!is_new && known->second != token.id) reject("has two ids");
    if (is_new && !result.content.emplace(token.id, token.content).second)
      reject("shares its id with another added token");
    result.vocab_size = std::max<int64_t>(result.vocab_size, int64_t{token.id} + 1);
    if (token.special) result.special.insert(token.id);
    if (!is_new) continue;
    (token.normalized ? normalized : raw).push_back(token);
    if (token.normalized) normalized.back().content = normalize(token.content);
  }
  result.raw = AddedVocabulary(std::move(raw));
  result.normalized = AddedVocabulary(std::move(normalized));
  return result;
}

PostProcessor read_post_processor(const JsonFields& json, JsonFields::Object top) {
  PostProcessorReader reader(json);
  if (const auto part = JsonFields::field(top, "post_processor"))
    reader.read(json.object(*part, "post_processor"));
  return reader.take();
}

void check_post_processor(const PostProcessor& processor, int64_t vocab_size, const std::string& where) {
  for (const auto* ids : {&processor.prefix, &processor.suffix}) {
    for (const int32_t id : *ids) {
      if (id < vocab_size) continue;
      throw data_error(
          {.what = fmt::format("the post-processor's id {} is outside the vocabulary of {}", id, vocab_size),
           .where = where});
    }
  }
}

}  // namespace teratron
