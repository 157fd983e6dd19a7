// Reads the tokenizer.json of a byte-level BPE tokenizer.
#pragma once

#include "teratron/tokenizer/bpe/byte_level_tokenizer.h"
#include "teratron/tokenizer/hf/json_fields.h"

namespace teratron {

struct BpeJson {
  std::vector<AddedToken> added;
  std::vector<const unicode::Normalization*> normalizers;
  std::vector<PreTokenizerStep> steps;  // the pre-tokenizers
  BpeConfig model;
  PostProcessor post_processor;
};

/// `top`: the whole file. UserError(data): missing fields or wrong types, unsupported parts.
BpeJson read_bpe_json(const JsonFields& json, JsonFields::Object top);

}  // namespace teratron
