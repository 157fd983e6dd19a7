#include "teratron/hf/export_tokenizer.h"

#include <memory>
#include <system_error>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/tokenizer/bpe/vocab_folder.h"
#include "teratron/tokenizer/hf/exported_json.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

// `own`, with what else a folder of transformers has beside them.
HfTokenizerFiles with_neighbours(HfTokenizerFiles own, const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder / "config.json", ignored)) own.merge(hf_tokenizer_files(folder));
  return own;
}

HfTokenizerFiles files_of(const TokenizerOptions& options) {
  const fs::path folder = fs::path(options.vocab_file).parent_path();
  if (options.type == "GPT2BPETokenizer") {
    return with_neighbours({{"vocab.json", options.vocab_file}, {"merges.txt", options.merge_file}}, folder);
  }
  if (options.type.starts_with("BertWordPiece"))
    return with_neighbours({{"vocab.txt", options.vocab_file}}, folder);
  const fs::path path = options.tokenizer_model;
  if (options.type != "HuggingFaceTokenizer") return with_neighbours({}, path.parent_path());
  if (fs::is_directory(path)) return hf_tokenizer_files(path);
  HfTokenizerFiles files = hf_tokenizer_files(path.parent_path());
  files["tokenizer.json"] = path;
  return files;
}

std::string tokenizer_config(const TokenizerOptions& options, const Tokenizer& tokenizer) {
  // AutoTokenizer would choose by the model, which may usually have another tokenizer.
  if (options.type == "GPT2BPETokenizer")
    return R"({"tokenizer_class": "GPT2Tokenizer"})"
           "\n";
  if (is_vocab_folder(options.tokenizer_model))
    return fmt::format("{{\"tokenizer_class\": \"{}\"}}\n", tokenizer_class_of(options.tokenizer_model));
  const SpecialTokens& special = tokenizer.special();
  std::map<int32_t, std::string> content_of;
  for (const auto& id : {special.bos, special.eos, special.eod, special.pad}) {
    if (id) content_of[*id] = tokenizer.decode(std::vector<int32_t>{*id});
  }
  return exported_tokenizer_config(special, content_of);
}

HfTokenizer collect(const TokenizerOptions& options) {
  if (options.type.empty()) return {.missing = "the settings name no tokenizer"};
  if (options.type == "NullTokenizer") return {.missing = "NullTokenizer has no tokens, only ids"};
  const std::unique_ptr<Tokenizer> built = build_tokenizer(options);
  HfTokenizer tokenizer{.files = files_of(options),
                        .contents = hf_tokenizer_contents(options),
                        .special = built->special(),
                        .configured = configured_tokens(tokenizer_folder(options))};
  if (!tokenizer.files.contains("tokenizer_config.json"))
    tokenizer.contents.emplace("tokenizer_config.json", tokenizer_config(options, *built));
  for (const auto& [name, text] : tokenizer.contents) tokenizer.files.erase(name);
  return tokenizer;
}

}  // namespace

HfTokenizer hf_tokenizer(const TokenizerOptions& options) {
  try {
    return collect(options);
  } catch (const UserError& error) {
    return {.missing = error.what()};
  }
}

HfTokenizer hf_tokenizer_in(const fs::path& folder) {
  HfTokenizer tokenizer{.files = hf_tokenizer_files(folder), .configured = configured_tokens(folder)};
  if (!tokenizer.files.empty()) return tokenizer;
  throw checkpoint_error({.what = "there are no tokenizer files",
                          .where = printable(folder.string(), 4096),
                          .fix = "--tokenizer-name takes a local folder with tokenizer.json or vocab.json"});
}

}  // namespace teratron
