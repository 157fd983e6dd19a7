// Strict JSON parser on nlohmann::json for untrusted input. Syntax errors, duplicate keys (which nlohmann
// silently drops) and nesting beyond a limit are UserErrors with file:line:column. Time and memory are linear
// in the size of the text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

struct JsonOptions {
  std::string where;                   // prefix of error messages, usually the file
  ExitCode kind = ExitCode::config;    // config, data or checkpoint
  size_t max_depth = 64;               // maximum nesting of arrays and objects
  size_t max_bytes = size_t{1} << 30;  // file size limit, checked before reading
};

/// Parses a string. Throws UserError(kind): "where:line:col: ...".
nlohmann::json parse_json(std::string_view text, const JsonOptions& options);

/// Reads and parses a file; `where` defaults to the path.
nlohmann::json read_json(const std::filesystem::path& path, JsonOptions options);

/// "line:column" (from 1; columns count bytes) of an offset in `text`.
std::string line_and_column(std::string_view text, size_t offset);

}  // namespace teratron
