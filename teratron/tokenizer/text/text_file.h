// Reads text files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// A whole file of valid UTF-8, at most 1 GiB; else UserError(data).
std::string read_text_file(const std::string& path);

/// Lines without \n or \r\n. The last line need not end with one.
std::vector<std::string_view> split_lines(std::string_view text);

}  // namespace teratron
