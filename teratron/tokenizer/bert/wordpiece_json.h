// tokenizer.json of a WordPiece tokenizer (BERT): BertNormalizer or none, BertPreTokenizer, WordPiece, any of
// the post-processors that add special tokens, and WordPiece or none as decoder.
#pragma once

#include <span>

#include "teratron/tokenizer/bert/wordpiece_tokenizer.h"
#include "teratron/tokenizer/hf/special_tokens.h"

namespace teratron {

/// `top`: the whole file; the other arguments: tokenizer/tokenizer_json.h. Special tokens that `names`
/// lacks are BERT's: [CLS], [SEP], [PAD], [MASK]. UserError(data): missing fields or wrong types, unsupported
/// parts, parts that contradict each other.
WordPieceConfig read_wordpiece_json(const JsonFields& json, JsonFields::Object top, SpecialTokensMap names,
                                    bool add_special_tokens);

/// The file of a tokenizer. `special`: tokens of its vocabulary that are found in the text. The
/// post-processor adds [CLS] ... [SEP].
std::string wordpiece_json(const WordPieceConfig& config, std::span<const std::string> special);

}  // namespace teratron
