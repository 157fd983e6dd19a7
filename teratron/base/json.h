// JSON that others wrote: nlohmann's parser, made strict. Duplicate keys (which it would silently drop),
// nesting beyond a limit and syntax errors are UserErrors with file:line:column.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

struct JsonOptions {
  std::string where;                   // what error messages name: usually the file
  ExitCode kind = ExitCode::config;    // config, data or checkpoint
  size_t max_depth = 64;               // of nested arrays and objects
  size_t max_bytes = size_t{1} << 30;  // of a file, checked before it is read
};

/// Parses a whole text. Throws UserError(kind): "where:line:col: ...".
nlohmann::json parse_json(std::string_view text, const JsonOptions& options);

/// Reads and parses a file (`where` is the path unless given).
nlohmann::json read_json(const std::filesystem::path& path, JsonOptions options);

/// "line:column" (from 1; columns count bytes) of an offset in a text.
std::string line_and_column(std::string_view text, size_t offset);

}  // namespace teratron
