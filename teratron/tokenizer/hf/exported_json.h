// Parts of the files that AutoTokenizer of transformers reads: tokenizer.json and tokenizer_config.json.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// A token that is found in the text before the model sees it.
struct ExportedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;  // left out of decoded text on request
};

/// tokenizer.json without what is null there; `parts`: normalizer, pre_tokenizer, post_processor, decoder.
std::string exported_tokenizer_json(const std::vector<ExportedToken>& added, nlohmann::ordered_json parts,
                                    nlohmann::ordered_json model);

/// tokenizer_config.json: a tokenizer.json is taken as it is, whatever the model; `names` of special tokens
/// ("eos_token") with the ids of a tokenizer, whose texts `content_of` gives.
std::string exported_tokenizer_config(const SpecialTokens& special,
                                      const std::map<int32_t, std::string>& content_of);

}  // namespace teratron
