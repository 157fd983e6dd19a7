// Reads the vocabulary and merges of a BPE. Errors are UserError(data) with file and line.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "teratron/tokenizer/bpe/bpe_model.h"

namespace teratron {

/// GPT-2's vocab.json (token -> id) and merges.txt ("left right" by rank; "#version" lines are skipped).
BpeConfig read_vocab_and_merges(const std::string& vocab_file, const std::string& merge_file);

/// Parses "left right"; `where` is file and line.
std::pair<std::string, std::string> parse_merge(std::string_view line, const std::string& where);

}  // namespace teratron
