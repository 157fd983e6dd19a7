#include "teratron/tokenizer/end_tokens.h"

#include <algorithm>

#include "teratron/base/config/python_json.h"
#include "teratron/base/error.h"
#include "teratron/tokenizer/text/text_file.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

// Ids of a key, a number or a list; none if it is absent or null.
std::vector<int32_t> ids_of(const nlohmann::json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    if (!id.is_number_integer() || id > INT32_MAX) {
      throw data_error({.what = fmt::format("{} is neither a token id nor a list of them: {}", key,
                                            printable(found->dump(), 80)),
                        .where = where,
                        .fix = "use the model's original file"});
    }
    if (id >= 0) add_end(id.get<int32_t>(), ids);  // some files write -1 for none
  }
  return ids;
}

std::optional<int32_t> id_of(const nlohmann::json& config, const char* key, const std::string& where) {
  const std::vector<int32_t> ids = ids_of(config, key, where);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

// transformers takes a list as one id for each text of a batch.
std::optional<int32_t> start_of(const nlohmann::json& config, const std::string& where) {
  const std::vector<int32_t> ids = ids_of(config, "decoder_start_token_id", where);
  if (ids.size() > 1) {
    throw data_error({.what = "decoder_start_token_id has several ids, but all decoders begin alike",
                      .where = where,
                      .fix = "Leave one of them"});
  }
  return ids.empty() ? id_of(config, "bos_token_id", where) : ids.front();
}

std::optional<nlohmann::json> object_of(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return std::nullopt;
  auto config = nlohmann::json::parse(without_bare_infinity(read_text_file(file.string())), nullptr,
                                      /*allow_exceptions=*/false);
  if (!config.is_object()) throw data_error({.what = "not a JSON object", .where = file.string()});
  return config;
}

// The keys of a model that reads images, too, are those of its language model where it has none.
nlohmann::json with_language_model(nlohmann::json config) {
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return config;
  for (const char* const key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
    const bool is_missing = !config.contains(key) || config[key].is_null();
    if (is_missing && text->contains(key)) config[key] = nlohmann::json((*text)[key]);
  }
  return config;
}

}  // namespace

// As transformers, which takes generation_config.json as a whole.
ConfiguredTokens configured_tokens(const fs::path& folder) {
  ConfiguredTokens tokens;
  if (folder.empty()) return tokens;
  const fs::path model = folder / "config.json", generation = folder / "generation_config.json";
  if (const auto whole = object_of(model)) {
    const nlohmann::json config = with_language_model(*whole);
    tokens.eos = tokens.ends = ids_of(config, "eos_token_id", model.string());
    tokens.bos = id_of(config, "bos_token_id", model.string());
    tokens.pad = id_of(config, "pad_token_id", model.string());
    tokens.decoder_start = start_of(config, model.string());
  }
  if (const auto config = object_of(generation)) {
    tokens.ends = ids_of(*config, "eos_token_id", generation.string());
    if (const auto start = start_of(*config, generation.string())) tokens.decoder_start = start;
  }
  return tokens;
}

namespace {

constexpr const char* kSettings = "hf_special_tokens";

}  // namespace

void save_configured_tokens(const ConfiguredTokens& tokens, nlohmann::json& settings) {
  if (tokens.empty()) return;
  nlohmann::json& saved = settings[kSettings] = {{"ends", tokens.ends}, {"eos_token_id", tokens.eos}};
  const auto set = [&saved](const char* key, const std::optional<int32_t>& id) {
    saved[key] = id ? nlohmann::json(*id) : nlohmann::json();
  };
  set("bos_token_id", tokens.bos);
  set("pad_token_id", tokens.pad);
  set("decoder_start_token_id", tokens.decoder_start);
}

ConfiguredTokens saved_configured_tokens(const std::string& settings) {
  const auto all = nlohmann::json::parse(settings, nullptr, /*allow_exceptions=*/false);
  const auto found = all.is_object() ? all.find(kSettings) : all.end();
  if (found == all.end() || !found->is_object()) return {};
  return {.ends = ids_of(*found, "ends", kSettings),
          .eos = ids_of(*found, "eos_token_id", kSettings),
          .bos = id_of(*found, "bos_token_id", kSettings),
          .pad = id_of(*found, "pad_token_id", kSettings),
          .decoder_start = id_of(*found, "decoder_start_token_id", kSettings)};
}

fs::path tokenizer_folder(const TokenizerOptions& options) {
  const fs::path file = options.tokenizer_model.empty() ? options.vocab_file : options.tokenizer_model;
  std::error_code ignored;
  if (file.empty() || fs::is_directory(file, ignored)) return file;
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

std::vector<int32_t> end_tokens(const TokenizerOptions& options, const Tokenizer& tokenizer) {
  std::vector<int32_t> ends = configured_tokens(tokenizer_folder(options)).ends;
  add_end(tokenizer.special().eos, ends);
  add_end(tokenizer.special().eod, ends);
  return ends;
}

void add_end(std::optional<int32_t> id, std::vector<int32_t>& ids) {
  if (id && std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
}

}  // namespace teratron
