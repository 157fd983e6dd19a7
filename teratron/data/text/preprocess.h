// JSON lines or plain text to indexed datasets: Megatron-LM's tools/preprocess_data.py.
//
// In a plain-text file (its name ends in .txt, .text or .raw) each line that is not blank is a document, with
// its line break, under every key.
//
// Each line is an object; the text under each requested key is tokenized and written to
// `<output prefix>_<key>_<document|sentence>.bin/.idx`. A text is a string (one sequence)
// or a list of strings (one sequence each). Sequences without tokens are dropped; a document without tokens
// stays as an empty document (Megatron-LM 2.6 drops it).
//
// One thread at a time reads, `workers` threads parse and tokenize, one writes: documents keep their order,
// and the output bytes do not depend on the number of workers. Memory: 2 x workers + 2 blocks of 1 MiB of
// text (or one longer line) with their tokens (4 bytes each), and for the index 4 bytes per sequence and 8
// per document.
//
// Files appear under their names when complete. A killed run leaves temporary files; the next run with the
// same prefix removes them and starts again. A second concurrent run with the same prefix is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "teratron/data/indexed/idx_format.h"

namespace teratron {

class Tokenizer;

/// Blocks of tokens as Hugging Face's run_clm makes them: the tokens of each 1,000 rows (documents, blank
/// lines of a text too) are concatenated and cut, and what is left over is dropped. A block is a document.
struct BlockOptions {
  int64_t size = 0;                                                      // tokens; 0: no blocks
  int64_t first_row = 0, end_row = std::numeric_limits<int64_t>::max();  // those that are read
  bool drop_blank_rows = false;  // blank lines of a text have no tokens, as in WikiText's dataset
  bool drop_line_breaks = false;
};

/// Splits a text into sentences.
using SentenceSplitter = std::function<std::vector<std::string>(std::string_view text)>;

struct PreprocessProgress {
  int64_t documents = 0;
  int64_t bytes = 0;        // read from the input files, before decompression
  int64_t total_bytes = 0;  // 0: unknown (standard input)
  double seconds = 0;
};

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files, possibly compressed (line_reader.h), or "-"
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  bool append_eod = false;            // after the last sequence with tokens of each document
  bool split_sentences = false;       // output level "sentence"; strings need a splitter
  SentenceSplitter splitter;          // may be empty
  bool drop_empty_documents = false;  // as in Megatron-LM 2.6
  BlockOptions blocks;
  IndexFormat format = IndexFormat::mmap;
  int workers = 1;
  /// Lines are assigned round-robin to this many partitions, which are then concatenated: Megatron-LM's
  /// --partitions without --keep-sequential-samples. 1 keeps the order.
  int partitions = 1;
  int64_t max_bad = 0;                                      // bad lines to skip before failing
  size_t max_line_bytes = size_t{1} << 28;                  // longer lines are bad lines
  int64_t log_interval = 1000;                              // documents between calls of `progress`
  std::function<void(const PreprocessProgress&)> progress;  // may be empty; called by the writing thread
};

struct PreprocessResult {
  int64_t documents = 0;  // lines that became a document
  int64_t bad_lines = 0;
  int64_t blank_lines = 0;
  int64_t bytes = 0;
  double seconds = 0;
  std::vector<int64_t> sequences, tokens;  // per key
  std::vector<std::string> prefixes;       // per key, of the files written
};

/// Whether the name is that of a plain-text file, possibly compressed.
bool is_plain_text(std::string_view path);

/// Throws UserError(data) naming file:line for the first bad line beyond max_bad: invalid JSON or UTF-8, a
/// missing key, wrong type, too long, ids outside the element type. Throws UserError(config) if `append_eod`
/// needs an end-of-document token that the tokenizer lacks, or if another process writes the same files.
/// Leaves no files behind then.
PreprocessResult preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace teratron
