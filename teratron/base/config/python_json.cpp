#include "teratron/base/config/python_json.h"

namespace teratron {

std::string without_bare_infinity(std::string_view text) {
  constexpr std::string_view word = "Infinity";
  std::string result;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      result += text.substr(i++, 2);
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    const bool bare = !quoted && text.substr(i).starts_with(word) && (i == 0 || text[i - 1] != '-');
    if (bare) {
      result += R"({"__float__": "Infinity"})";
      i += word.size() - 1;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace teratron
