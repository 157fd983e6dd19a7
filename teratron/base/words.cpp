#include "teratron/base/words.h"

#include <algorithm>

namespace teratron {

std::vector<std::string> words(std::string_view text, char separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) out.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

}  // namespace teratron
