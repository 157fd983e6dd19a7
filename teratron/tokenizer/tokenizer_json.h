// tokenizer.json of Hugging Face tokenizers, read by its model: byte-level BPE (GPT-2, Llama 3, Qwen...), BPE
// of characters with byte fallback (Llama 2, Mistral, Gemma), Unigram (T5, mT5) or WordPiece (BERT). Token
// for token as the library. Truncation and padding in the file are not applied, as in
// transformers, where each call asks for them.
#pragma once

#include <memory>
#include <string>

#include "teratron/tokenizer/hf/special_tokens.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// `special`: from tokenizer_config.json or special_tokens_map.json. `add_special_tokens`: the tokens of the
/// post-processor, e.g. [CLS] ... [SEP]. UserError(data): invalid JSON, missing fields or wrong types,
/// duplicate keys, unsupported parts, parts that contradict each other.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path, const SpecialTokensMap& special,
                                               bool add_special_tokens);

}  // namespace teratron
