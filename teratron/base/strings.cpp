#include "teratron/base/strings.h"

#include <algorithm>
#include <cctype>
#include <fstream>

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

std::string shell_word(const std::string& word) {
  constexpr std::string_view plain = "-_./=:,+@%";
  const bool is_plain = !word.empty() && std::ranges::all_of(word, [&](unsigned char c) {
    return std::isalnum(c) != 0 || plain.find(static_cast<char>(c)) != plain.npos;
  });
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::vector<std::string> words_of_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::string command_line_of_process() {
  std::string text;
  for (const std::string& word : words_of_process()) text += (text.empty() ? "" : " ") + shell_word(word);
  return printable(text, 16384);
}

}  // namespace teratron
