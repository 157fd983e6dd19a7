#include "teratron/tokenizer/text/text_file.h"

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

std::string read_text_file(const std::string& path) {
  std::string text = read_text(path, {.kind = ExitCode::data});
  if (!unicode::is_valid(text)) throw data_error({.what = "is not valid UTF-8", .where = path});
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace teratron
