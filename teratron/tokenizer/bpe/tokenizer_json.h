// Reads tokenizer.json of Hugging Face tokenizers, for byte-level BPE.
#pragma once

#include "teratron/tokenizer/bpe/byte_level_tokenizer.h"

namespace teratron {

struct TokenizerJson {
  std::vector<AddedToken> added;
  std::vector<const unicode::Normalization*> normalizers;
  std::vector<PreTokenizerStep> steps;  // the pre-tokenizers
  BpeConfig model;
  std::vector<int32_t> prefix, suffix;  // added by the post-processor
  std::optional<TrimOffsets> trim;
};

/// UserError(data): invalid JSON, missing fields or wrong types, duplicate keys, unsupported parts.
TokenizerJson read_tokenizer_json(const std::string& path);

/// From special_tokens_map.json and tokenizer_config.json in the folder of tokenizer.json.
SpecialTokensMap read_special_tokens_map(const std::string& directory);

}  // namespace teratron
