#include "teratron/hf/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "teratron/base/environment.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/tokenizer/bpe/vocab_folder.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// What tokenizer_config.json says of an option.
bool option(const HfTokenizerFiles& files, const char* name, bool fallback) {
  if (!files.contains("tokenizer_config.json")) return fallback;
  const json config = read_json(files.at("tokenizer_config.json"), {.kind = ExitCode::checkpoint});
  if (!config.is_object() || !config.contains(name) || !config[name].is_boolean()) return fallback;
  return config[name].get<bool>();
}

// By what transformers 4 writes beside the vocab.txt of a BERT; null for rules that no --tokenizer-type has.
json bert_tokenizer_type(const HfTokenizerFiles& files) {
  const bool lower = option(files, "do_lower_case", true);
  if (option(files, "strip_accents", lower) != lower || !option(files, "tokenize_chinese_chars", true))
    return nullptr;
  return lower ? "BertWordPieceLowerCase" : "BertWordPieceCase";
}

constexpr std::array processor_names = {"preprocessor_config.json", "processor_config.json",
                                        "video_preprocessor_config.json"};
constexpr uint64_t most_processor_bytes = 1 << 20;

}  // namespace

HfTokenizerFiles hf_tokenizer_files(const fs::path& folder) {
  HfTokenizerFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                           "merges.txt", "vocab.txt", "tokenizer.model", "tekken.json", "added_tokens.json",
                           "chat_template.jinja", "chat_template.json", "generation_config.json"}) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) files[name] = folder / name;
  }
  for (const char* const name : processor_names) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) files[name] = folder / name;
  }
  return files;
}

json hf_processor_texts(const fs::path& folder) {
  json texts = json::object();
  for (const char* const name : processor_names) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / name, ignored)) continue;
    texts[name] = read_text(folder / name, {.kind = ExitCode::checkpoint, .max_bytes = most_processor_bytes});
  }
  return texts;
}

json hf_tokenizer_settings(const fs::path& folder) {
  const HfTokenizerFiles files = hf_tokenizer_files(fs::absolute(folder));
  const auto path = [&files](const char* name) { return files.at(name).lexically_normal().string(); };
  const json bert = files.contains("vocab.txt") ? bert_tokenizer_type(files) : json();
  if (!bert.is_null()) return {{"tokenizer_type", bert}, {"vocab_file", path("vocab.txt")}};
  if (files.contains("tokenizer.json"))
    return {{"tokenizer_type", "HuggingFaceTokenizer"}, {"tokenizer_model", path("tokenizer.json")}};
  if (files.contains("tokenizer.model")) {
    const bool bos = option(files, "add_bos_token", true);
    return {{"tokenizer_type", bos ? "Llama2Tokenizer" : "GPTSentencePieceTokenizer"},
            {"tokenizer_model", path("tokenizer.model")}};
  }
  const bool has_merges = files.contains("vocab.json") && files.contains("merges.txt");
  if (!has_merges && files.contains("tekken.json"))
    return {{"tokenizer_type", "TikTokenizer"}, {"tokenizer_model", path("tekken.json")}};
  if (!has_merges) return json::object();
  if (tokenizer_class_of(folder) != "GPT2Tokenizer") {
    const std::string whole = fs::absolute(folder).lexically_normal().string();
    return {{"tokenizer_type", "HuggingFaceTokenizer"}, {"tokenizer_model", whole}};
  }
  return {{"tokenizer_type", "GPT2BPETokenizer"},
          {"vocab_file", path("vocab.json")},
          {"merge_file", path("merges.txt")}};
}

namespace {

// `kind`: "models" or "datasets".
std::optional<fs::path> cached_snapshot(std::string_view kind, const std::string& name) {
  const auto variable = [](const char* key) { return process_environment(key).value_or(""); };
  fs::path cache = variable("HF_HUB_CACHE");
  if (cache.empty() && !variable("HF_HOME").empty()) cache = fs::path(variable("HF_HOME")) / "hub";
  if (cache.empty()) cache = fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
  std::string folder = fmt::format("{}--{}", kind, name);
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  std::error_code ignored;
  const fs::path reference = cache / folder / "refs" / "main";
  if (!fs::is_regular_file(reference, ignored)) return std::nullopt;
  std::string commit = read_text(reference, {.kind = ExitCode::checkpoint, .max_bytes = 4096});
  commit.erase(std::min(commit.find_last_not_of(" \n") + 1, commit.size()));
  const fs::path snapshot = cache / folder / "snapshots" / commit;
  if (commit.find('/') != commit.npos || !fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot;
}

}  // namespace

std::optional<fs::path> cached_hf_folder(const std::string& name) {
  return cached_snapshot("models", name);
}

std::optional<fs::path> cached_hf_dataset(const std::string& name) {
  return cached_snapshot("datasets", name);
}

}  // namespace teratron
