// Reads tokenizer files. Errors are UserError(data) with file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/bpe/bpe_model.h"

namespace teratron {

/// A whole file of valid UTF-8, at most 1 GiB.
std::string read_text_file(const std::string& path);

/// Lines without \n or \r\n. The last line need not end with one.
std::vector<std::string_view> split_lines(std::string_view text);

/// GPT-2's vocab.json (token -> id) and merges.txt ("left right" by rank; "#version" lines are skipped).
BpeConfig read_vocab_and_merges(const std::string& vocab_file, const std::string& merge_file);

/// Parses "left right"; `where` is file and line.
std::pair<std::string, std::string> parse_merge(std::string_view line, const std::string& where);

}  // namespace teratron
