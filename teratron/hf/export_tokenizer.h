// Writes tokenizer files for an exported folder; AutoTokenizer gives the same ids.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "teratron/hf/tokenizer_files.h"
#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/tokenizer/end_tokens.h"

namespace teratron {

struct HfTokenizer {
  HfTokenizerFiles files = {};                       // copied to the folder
  std::map<std::string, std::string> contents = {};  // written to the folder: name -> contents
  SpecialTokens special = {};                        // for config.json, and what the folder's said
  ConfiguredTokens configured = {};
  std::string missing = {};  // why there is none; empty: there is one
};

/// The tokenizer of a run. Files of the folder that it came from (chat template, generation_config.json) come
/// along.
HfTokenizer hf_tokenizer(const TokenizerOptions& options);

/// The files of a folder. UserError(checkpoint) if it has none.
HfTokenizer hf_tokenizer_in(const std::filesystem::path& folder);

}  // namespace teratron
