// A SentencePiece model as tokenizer.json of Hugging Face tokenizers, with the same ids.
//
// The normalizer does what SentencePiece's does, over the whole text, which is not split, since pieces may
// hold spaces. Merges of BPE: every split of a piece into two pieces, in the order of the scores.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/tokenizer/hf/exported_json.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"

namespace teratron {

/// What the tokenizer of Megatron-LM adds to the model.
struct SentencePieceExtras {
  std::vector<ExportedToken> added;                    // found in the text
  std::optional<std::pair<std::string, int32_t>> bos;  // before every text
};

/// Contents of the file. UserError(data) if the model has what such a file cannot say: unused pieces, spaces
/// that stay unescaped or follow words, another normalizer for decoded text.
std::string sentencepiece_json(const SentencePieceSpec& spec, const SentencePieceExtras& extras);

}  // namespace teratron
