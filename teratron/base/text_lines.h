// Lines of text input, bounded while they are read: a device or a pipe may never end.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <istream>
#include <string>
#include <string_view>

#include "teratron/base/error.h"

namespace teratron {

inline constexpr size_t max_line_bytes = size_t{1} << 28;

/// std::getline; UserError(data) as soon as a line is longer than `limit`. `where` names the input.
bool next_line(std::istream& input, std::string& line, std::string_view where, size_t limit = max_line_bytes);

/// All that is left; UserError(data) as soon as it is longer than `limit`.
std::string read_rest(std::istream& input, std::string_view where, size_t limit = size_t{1} << 30);

/// A regular file; UserError(kind) for any other and for one that cannot be read.
std::ifstream open_text(const std::filesystem::path& path, ExitCode kind);

}  // namespace teratron
