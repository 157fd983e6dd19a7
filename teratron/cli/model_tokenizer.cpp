#include "teratron/cli/model_tokenizer.h"

#include "teratron/base/log.h"
#include "teratron/settings/tokenizer_settings.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

// Under the names that transformers looks for.
HfTokenizerFiles files_of(const TokenizerOptions& options) {
  if (options.type == "GPT2BPETokenizer") {
    return {{"vocab.json", options.vocab_file}, {"merges.txt", options.merge_file}};
  }
  if (options.type != "HuggingFaceTokenizer") return {};
  const fs::path path = options.tokenizer_model;
  return hf_tokenizer_files(fs::is_directory(path) ? path : path.parent_path());
}

}  // namespace

ModelTokenizer tokenizer_of(const CheckpointInfo& checkpoint) {
  std::vector<std::string> unknown;
  const TokenizerOptions options =
      tokenizer_options(arguments_from_json(checkpoint.config, checkpoint.path.string(), &unknown));
  ModelTokenizer tokenizer{.files = files_of(options)};
  if (tokenizer.files.empty()) {
    notice(
        "no tokenizer is copied: {} has no files that transformers reads. --tokenizer-name names a folder "
        "with some",
        options.type.empty() ? "the checkpoint" : options.type);
    return tokenizer;
  }
  try {
    tokenizer.end_token = build_tokenizer(options)->special().eod;
  } catch (const UserError& error) {
    notice("no tokenizer is copied: {} --tokenizer-name names a folder with one", error.what());
    tokenizer.files.clear();
  }
  return tokenizer;
}

ModelTokenizer tokenizer_in(const fs::path& folder) {
  ModelTokenizer tokenizer{.files = hf_tokenizer_files(folder)};
  if (!tokenizer.files.empty()) return tokenizer;
  throw checkpoint_error({.what = "there are no tokenizer files",
                          .where = printable(folder.string(), 4096),
                          .fix = "--tokenizer-name takes a local folder with tokenizer.json or vocab.json"});
}

}  // namespace teratron
