#include "teratron/tokenizer/jinja/values/python_text.h"

#include <algorithm>

#include "teratron/tokenizer/jinja/values/workspace.h"
#include "teratron/tokenizer/unicode/properties.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

size_t character_bytes(std::string_view text, size_t at) {
  return std::min(unicode::sequence_bytes(text[at]), text.size() - at);
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

size_t character_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  while (index-- > 0 && at < text.size()) at += character_bytes(text, at);
  return at;
}

namespace {

// Knuth, Morris and Pratt: of each prefix, the longest that is also its end.
std::vector<size_t> borders_of(std::string_view pattern) {
  std::vector<size_t> borders(pattern.size(), 0);
  for (size_t i = 1, matched = 0; i < pattern.size(); ++i) {
    while (matched > 0 && pattern[i] != pattern[matched]) matched = borders[matched - 1];
    if (pattern[i] == pattern[matched]) ++matched;
    borders[i] = matched;
  }
  return borders;
}

constexpr size_t short_pattern = 32;  // for which the library's search is fast enough

}  // namespace

size_t find_text(Workspace& workspace, std::string_view text, std::string_view pattern, size_t from) {
  if (pattern.size() <= short_pattern) {
    const size_t found = text.find(pattern, from);
    workspace.work((found == text.npos ? text.size() : found) - std::min(from, text.size()) + 1);
    return found;
  }
  workspace.work(text.size() - std::min(from, text.size()) + 16 * pattern.size());
  const std::vector<size_t> borders = borders_of(pattern);
  for (size_t i = from, matched = 0; i < text.size(); ++i) {
    while (matched > 0 && text[i] != pattern[matched]) matched = borders[matched - 1];
    if (text[i] == pattern[matched]) ++matched;
    if (matched == pattern.size()) return i + 1 - matched;
  }
  return text.npos;
}

size_t rfind_text(Workspace& workspace, std::string_view text, std::string_view pattern) {
  size_t last = text.npos;
  for (size_t at = find_text(workspace, text, pattern, 0); at != text.npos;
       at = find_text(workspace, text, pattern, at + 1))
    last = at;
  return last;
}

bool is_blank(uint32_t code_point) {
  return (unicode::characters()[code_point] & unicode::python_split) != 0;
}

namespace {

uint32_t code_at(std::string_view text, size_t at) {
  const char* p = text.data() + at;
  return unicode::next(p);
}

bool removable(std::string_view character, std::optional<std::string_view> characters) {
  return characters ? characters->find(character) != characters->npos : is_blank(code_at(character, 0));
}

std::string_view last_character(std::string_view text) {
  const char* p = text.data() + text.size();
  unicode::previous(text.data(), p);
  return text.substr(static_cast<size_t>(p - text.data()));
}

}  // namespace

std::string_view stripped(std::string_view text, Ends ends, std::optional<std::string_view> characters) {
  while (ends != Ends::right && !text.empty() &&
         removable(text.substr(0, character_bytes(text, 0)), characters))
    text.remove_prefix(character_bytes(text, 0));
  while (ends != Ends::left && !text.empty() && removable(last_character(text), characters))
    text.remove_suffix(last_character(text).size());
  return text;
}

std::vector<std::string_view> words(std::string_view text, int64_t most) {
  std::vector<std::string_view> all;
  text = stripped(text, Ends::left);
  while (!text.empty()) {
    if (most >= 0 && std::ssize(all) == most) {
      all.push_back(stripped(text, Ends::right));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_blank(code_at(text, end))) end += character_bytes(text, end);
    all.push_back(text.substr(0, end));
    text = stripped(text.substr(end), Ends::left);
  }
  return all;
}

std::vector<std::string_view> lines(std::string_view text, bool with_ends) {
  const auto ends_line = [](uint32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<std::string_view> all;
  for (size_t begin = 0, at = 0; at < text.size();) {
    const size_t end = at;
    const uint32_t code = code_at(text, at);
    at += character_bytes(text, at);
    const bool is_end = ends_line(code);
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    if (!is_end && at < text.size()) continue;
    all.push_back(text.substr(begin, (is_end && !with_ends ? end : at) - begin));
    begin = at;
  }
  return all;
}

std::string quoted_text(std::string_view text) {
  // Categories of which Python shows the numbers.
  static const unicode::CodeSet hidden = (unicode::property("C").value_or(unicode::CodeSet()) |
                                          unicode::property("Z").value_or(unicode::CodeSet())) &
                                         unicode::CodeSet::of(' ').complement();
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  std::string quoted(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text, at);
    const uint32_t code = code_at(text, at);
    if (code == '\n' || code == '\r' || code == '\t') {
      quoted += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      quoted += {'\\', static_cast<char>(code)};
    } else if (hidden.contains(code)) {
      quoted += code < 0x100     ? fmt::format("\\x{:02x}", code)
                : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                 : fmt::format("\\U{:08x}", code);
    } else {
      quoted += text.substr(at, bytes);
    }
    at += bytes;
  }
  return quoted + quote;
}

std::string upper_text(Workspace& workspace, std::string_view text) {
  std::string upper;
  for (size_t at = 0; at < text.size(); at += character_bytes(text, at)) {
    const std::string_view character = text.substr(at, character_bytes(text, at));
    if (character.size() == 1) {
      upper +=
          character[0] >= 'a' && character[0] <= 'z' ? static_cast<char>(character[0] - 32) : character[0];
    } else if ((unicode::characters()[code_at(text, at)] & unicode::python_cased) != 0) {
      throw workspace.error(
          fmt::format("there is no upper case of '{}' here, only of ASCII letters", character));
    } else {
      upper += character;
    }
  }
  return upper;
}

std::string lower_text(std::string_view text) {
  return unicode::python_lower(text);
}

std::string capitalized(Workspace& workspace, std::string_view text) {
  if (text.empty()) return "";
  const size_t first = character_bytes(text, 0);
  return upper_text(workspace, text.substr(0, first)) + lower_text(text.substr(first));
}

}  // namespace teratron::jinja
