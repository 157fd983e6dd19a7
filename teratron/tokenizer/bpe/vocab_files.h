// Reading the files of a tokenizer. All throw UserError(data) naming file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/bpe/bpe_model.h"

namespace teratron {

/// The whole file; it must be valid UTF-8 and no larger than 1 GiB.
std::string read_text_file(const std::string& path);

/// Lines without their ends (\n or \r\n); a last line without an end counts.
std::vector<std::string_view> split_lines(std::string_view text);

/// vocab.json (token -> id) and merges.txt ("left right" by rank, "#version" lines are skipped), as GPT-2's.
BpeSpec read_gpt2_files(const std::string& vocab_file, const std::string& merge_file);

/// "left right" -> the two. Throws when it is not exactly two parts; `where` names the line.
std::pair<std::string, std::string> parse_merge(std::string_view line, const std::string& where);

}  // namespace teratron
