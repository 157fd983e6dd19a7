// Tokenizes one block of JSON lines, or of lines of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/data/text/line_reader.h"
#include "teratron/data/text/preprocess.h"

namespace teratron {

/// The documents of one key of one block.
struct TokenizedKey {
  std::vector<int32_t> tokens;  // of all sequences
  std::vector<int32_t> sequence_lengths;
  std::vector<int32_t> document_sequences;  // number of sequences of each document
};

struct BadLine {
  int64_t line = 0;
  std::string what;
};

struct TokenizedBlock {
  size_t file = 0;
  std::vector<TokenizedKey> keys;  // all with the same number of documents
  std::vector<BadLine> bad;
  int64_t blank_lines = 0;
  int64_t position = 0;  // of the reader after this block, in bytes
};

/// Parses and tokenizes a block; bad lines are reported in the result.
TokenizedBlock tokenize_block(LineBlock block, const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace teratron
