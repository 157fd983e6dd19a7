// Learns a byte-level BPE from text (Sennrich et al. 2016 over GPT-2's words and bytes).
//
// Words are counted; then, until the vocabulary is full, the adjacent pair that occurs most often (of equals
// the one with the smaller ids) becomes a token. The result depends on the text alone, not on the order of
// its documents. Ids: 0-255 the bytes in the order of GPT-2's alphabet, then merged tokens, special tokens
// last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace teratron {

struct BpeTrainerOptions {
  int64_t vocab_size = 32768;                                   // everything included
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // never learnt, never merged into
  int64_t min_frequency = 2;                                    // rarer pairs are not merged
};

/// What was learnt, tokens in the spelling of byte_alphabet.h.
struct TrainedBpe {
  std::vector<std::string> tokens;                          // by id; may be fewer than asked for: little text
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<std::string> special_tokens;                  // the last of `tokens`
};

/// Puts the next document into its argument; false at the end.
using DocumentSource = std::function<bool(std::string& document)>;

/// Throws UserError(config) when vocab_size leaves no room for the 256 bytes and the special tokens, or a
/// special token is empty, twice there, or a byte; UserError(data) when there is no text.
TrainedBpe train_bpe(const DocumentSource& documents, const BpeTrainerOptions& options);

/// Writes vocab.json, merges.txt (GPT2BPETokenizer), tokenizer.json and tokenizer_config.json (Hugging Face)
/// into `directory`, which is made if needed.
void write_bpe(const TrainedBpe& bpe, const std::filesystem::path& directory);

}  // namespace teratron
