#include "teratron/base/strings.h"

#include <algorithm>
#include <cctype>

#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string to_lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string terminal_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\t"), text.size());
    out += printable(text.substr(0, end), end);
    if (end < text.size()) out += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string stdout_text(std::string_view text) {
  return isatty(STDOUT_FILENO) == 1 ? terminal_text(text) : std::string(text);
}

}  // namespace teratron
