// JSON lines to indexed datasets: what Megatron-LM's tools/preprocess_data.py does.
//
// Each line is an object; the text of every wanted key is tokenized and goes to
// `<output prefix>_<key>_<document|sentence>.bin/.idx`. A text is a string (one sequence) or a list of strings
// (one sequence each). Sequences without tokens are dropped; a document without tokens stays as an empty document
// (2.6: is left out).
//
// One thread reads, `workers` threads parse and tokenize, one writes: the order is that of the input, and the bytes do
// not depend on the number of workers. Memory: 2 x workers + 2 blocks of 1 MiB of text (or one line, if it is longer) with
// their tokens (4 bytes each), and for the index 4 bytes per sequence and 8 per document.
//
// The files appear under their names when they are complete. A run that was killed leaves temporary files behind; the
// next one with the same prefix removes them and begins anew. Two at a time with one prefix are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "teratron/data/indexed/idx_format.h"

namespace teratron {

class Tokenizer;

/// Cuts a text into sentences.
using SentenceSplitter = std::function<std::vector<std::string>(std::string_view text)>;

struct PreprocessProgress {
  int64_t documents = 0;
  int64_t bytes = 0;        // of the input files, as stored
  int64_t total_bytes = 0;  // 0: unknown (standard input)
  double seconds = 0;
};

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files or "-"; compressed ones too (text_source.h)
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  bool append_eod = false;            // after the last sequence with tokens of each document
  bool split_sentences = false;       // names the output "sentence"; strings need a splitter
  SentenceSplitter splitter;          // may be empty
  bool drop_empty_documents = false;  // as Megatron-LM 2.6
  IndexFormat format = IndexFormat::mmap;
  int workers = 1;
  /// Lines are dealt round-robin to this many parts, which are then joined: Megatron-LM's --partitions without
  /// --keep-sequential-samples. 1 keeps the order.
  int partitions = 1;
  int64_t max_bad = 0;                                      // lines that may be wrong; they are left out
  size_t max_line_bytes = size_t{1} << 28;                  // longer lines are wrong lines
  int64_t log_interval = 1000;                              // documents between two calls of `progress`
  std::function<void(const PreprocessProgress&)> progress;  // may be empty; called by the writing thread
};

struct PreprocessResult {
  int64_t documents = 0;  // lines turned into a document
  int64_t bad_lines = 0;
  int64_t blank_lines = 0;
  int64_t bytes = 0;
  double seconds = 0;
  std::vector<int64_t> sequences, tokens;  // per key
  std::vector<std::string> prefixes;       // per key, of the files written
};

/// Throws UserError(data) naming file:line for the first wrong line beyond max_bad (broken JSON, invalid UTF-8,
/// missing key, wrong type, too long, ids that the element type cannot hold), UserError(config) when
/// `append_eod` meets a tokenizer without an end-of-document token or another process writes the same files. Nothing
/// is left behind then.
PreprocessResult preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace teratron
