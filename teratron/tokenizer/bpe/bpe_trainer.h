// Trains a byte-level BPE (Sennrich et al. 2016, with GPT-2's pre-tokenizer and bytes).
//
// The most frequent adjacent pair (on ties, the one with the smaller ids) becomes a token, until the
// vocabulary is full. The result does not depend on the order of the documents. Ids: the 256 bytes in
// bytes_to_unicode order, merged tokens, special tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace teratron {

struct BpeTrainerOptions {
  int64_t vocab_size = 32768;                                   // including bytes and special tokens
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // never created by a merge
  int64_t min_frequency = 2;                                    // rarer pairs are not merged
};

/// Tokens are byte-encoded (bytes_to_unicode.h).
struct TrainedBpe {
  std::vector<std::string> tokens;  // by id; fewer than vocab_size if there is little text
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<std::string> special_tokens;                  // the last ones in `tokens`
};

/// Reads the next document; false at the end.
using DocumentSource = std::function<bool(std::string& document)>;

/// UserError(config) if vocab_size is less than 256 + special tokens, or a special token is empty, a
/// duplicate or a byte; UserError(data) if there is no text.
TrainedBpe train_bpe(const DocumentSource& documents, const BpeTrainerOptions& options);

/// Writes vocab.json, merges.txt (GPT2BPETokenizer), tokenizer.json and tokenizer_config.json (Hugging Face)
/// to `directory`, which is created if needed.
void write_bpe(const TrainedBpe& bpe, const std::filesystem::path& directory);

}  // namespace teratron
