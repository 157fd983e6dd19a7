// Python's operations on texts (UTF-8), with its blanks: those of str.split().
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// str.replace().
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// str.rstrip(), str.strip().
std::string_view right_stripped(std::string_view text);
std::string_view stripped(std::string_view text);
/// str.split().
std::vector<std::string_view> words_of(std::string_view text);
/// re.sub(r"\s+", " ", text).
std::string single_blanks(std::string_view text);
/// len().
int64_t code_points(std::string_view text);

}  // namespace teratron
