// Reads the tokenizer.json of a Unigram model or of a BPE of characters.
#pragma once

#include "teratron/tokenizer/hf/json_fields.h"
#include "teratron/tokenizer/pieces/piece_tokenizer.h"

namespace teratron {

/// Whether the file's BPE is one of characters: without the pre-tokenizer ByteLevel.
bool is_character_bpe(const JsonFields& json, JsonFields::Object top);

/// `top`: the whole file. UserError(data): missing fields or wrong types, unsupported parts.
PieceTokenizerConfig read_piece_json(const JsonFields& json, JsonFields::Object top);

}  // namespace teratron
