#include "teratron/tokenizer/bpe/vocab_folder.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "teratron/base/config/python_json.h"
#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/hf_tokenizer.h"
#include "teratron/tokenizer/bpe/vocab_files.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// An empty object if there is no such file.
nlohmann::json object_in(const fs::path& file) {
  if (!is_file(file)) return nlohmann::json::object();
  nlohmann::json value = nlohmann::json::parse(without_bare_infinity(read_text_file(file.string())), nullptr,
                                               /*allow_exceptions=*/false);
  if (!value.is_object()) throw data_error({.what = "not a JSON object", .where = file.string()});
  return value;
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool flag_in(const nlohmann::json& object, const char* key, bool otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

// "added_tokens_decoder" of tokenizer_config.json, else added_tokens.json.
std::vector<AddedToken> listed_tokens(const fs::path& folder, const nlohmann::json& config) {
  std::vector<AddedToken> tokens;
  const auto reject = [&](const std::string& what) {
    throw data_error({.what = what, .where = (folder / "tokenizer_config.json").string()});
  };
  const nlohmann::json decoder = config.value("added_tokens_decoder", nlohmann::json::object());
  for (const auto& [id, token] : decoder.items()) {
    const bool is_number = !id.empty() && id.size() < 10 && std::ranges::all_of(id, ::isdigit);
    if (!is_number || !token.is_object() || text_in(token, "content").empty())
      reject(
          fmt::format("the entry '{}' of added_tokens_decoder is not an id and a token", printable(id, 40)));
    AddedToken& added = tokens.emplace_back(AddedToken{.content = text_in(token, "content"),
                                                       .id = std::stoi(id),
                                                       .single_word = flag_in(token, "single_word", false),
                                                       .lstrip = flag_in(token, "lstrip", false),
                                                       .rstrip = flag_in(token, "rstrip", false),
                                                       .special = flag_in(token, "special", false)});
    added.normalized = flag_in(token, "normalized", !added.special);
  }
  if (tokens.empty()) {
    const nlohmann::json listed = object_in(folder / "added_tokens.json");
    for (const auto& [content, id] : listed.items()) {
      if (!id.is_number_unsigned() || id > INT32_MAX)
        reject(fmt::format("the id of '{}' in added_tokens.json is none", printable(content)));
      tokens.push_back({.content = content, .id = id.get<int32_t>(), .normalized = true});
    }
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  return tokens;
}

// The named tokens are special. Those that are new get the next ids, in this order.
void add_named(const SpecialTokensMap& names, const std::string& unknown, BpeJson& json) {
  std::unordered_map<std::string, int32_t> ids(json.model.vocab.begin(), json.model.vocab.end());
  int32_t next = 0;
  for (const auto& [token, id] : ids) next = std::max(next, id + 1);
  for (const AddedToken& token : json.added) {
    ids.emplace(token.content, token.id);
    next = std::max(next, token.id + 1);
  }
  std::vector<std::string> all = {names.bos, names.eos, unknown, names.sep, names.pad, names.cls, names.mask};
  all.insert(all.end(), names.additional.begin(), names.additional.end());
  for (const std::string& name : all) {
    if (name.empty()) continue;
    const auto listed = std::ranges::find(json.added, name, &AddedToken::content);
    if (listed != json.added.end()) {
      listed->special = true;
      continue;
    }
    const auto [known, is_new] = ids.emplace(name, next);
    next += is_new ? 1 : 0;
    json.added.push_back({.content = name, .id = known->second, .special = true});
  }
}

void use_class(const std::string& name, bool prefix_space, const std::string& where, BpeJson& json) {
  if (name == "GPT2Tokenizer") {
    json.steps = {{.pattern = SplitPattern::gpt2, .add_prefix_space = prefix_space}};
    return;
  }
  json.normalizers = {&unicode::kNfc};
  if (name == "Qwen2Tokenizer") {
    json.steps = {{.pattern = SplitPattern::qwen2}};
  } else {
    throw data_error(
        {.what = name.empty()
                     ? "vocab.json and merges.txt do not say how text is split into words"
                     : fmt::format("the tokenizer class '{}' is not supported without tokenizer.json",
                                   printable(name)),
         .where = where,
         .fix = "add tokenizer.json, which save_pretrained() of transformers writes, or a "
                "tokenizer_config.json with the tokenizer_class GPT2Tokenizer or Qwen2Tokenizer"});
  }
  if (prefix_space) json.steps.push_back({.add_prefix_space = true});
}

}  // namespace

bool is_vocab_folder(const fs::path& folder) {
  return !is_file(folder / "tokenizer.json") && is_file(folder / "vocab.json") &&
         is_file(folder / "merges.txt");
}

std::string tokenizer_class_of(const fs::path& folder) {
  std::string name = text_in(object_in(folder / "tokenizer_config.json"), "tokenizer_class");
  const nlohmann::json model = object_in(folder / "config.json");
  if (name.empty()) name = text_in(model, "tokenizer_class");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (!name.empty()) return name;
  const std::string type = text_in(model, "model_type");
  if (type == "gpt2") return "GPT2Tokenizer";
  const bool qwen = type.starts_with("qwen2") || (type.starts_with("qwen3") && !type.starts_with("qwen3_5"));
  return qwen ? "Qwen2Tokenizer" : "";
}

std::unique_ptr<Tokenizer> read_vocab_folder(const fs::path& folder, bool add_special_tokens) {
  const nlohmann::json config = object_in(folder / "tokenizer_config.json");
  const std::string name = tokenizer_class_of(folder);
  BpeJson json{.model =
                   read_vocab_and_merges((folder / "vocab.json").string(), (folder / "merges.txt").string())};
  use_class(name, flag_in(config, "add_prefix_space", false), folder.string(), json);
  json.added = listed_tokens(folder, config);
  // The classes' own special tokens where the files name none.
  const auto usual = [&](const char* key) { return config.contains(key) ? "" : kEndOfText; };
  SpecialTokensMap names{.eos = usual("eos_token")};
  if (name == "GPT2Tokenizer") {
    names.bos = usual("bos_token");
  } else {
    names.pad = usual("pad_token");
  }
  read_special_tokens_map(folder.string(), names);
  const std::string unknown = config.contains("unk_token") ? text_in(config, "unk_token") : kEndOfText;
  add_named(names, unknown, json);
  const auto id_of = [&](const std::string& token) {
    return std::ranges::find(json.added, token, &AddedToken::content)->id;
  };
  if (flag_in(config, "add_bos_token", false) && !names.bos.empty())
    json.post_processor.prefix = {id_of(names.bos)};
  if (flag_in(config, "add_eos_token", false) && !names.eos.empty())
    json.post_processor.suffix = {id_of(names.eos)};
  return std::make_unique<HuggingFaceTokenizer>(std::move(json), names, add_special_tokens);
}

}  // namespace teratron
