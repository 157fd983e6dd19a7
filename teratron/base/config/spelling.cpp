#include "teratron/base/config/spelling.h"

#include <algorithm>

#include "teratron/base/strings.h"

namespace teratron {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substitute, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

size_t spelling_distance(const std::string& typed, const std::string& name) {
  if (typed.size() >= 3 && name.starts_with(typed)) return 1;
  const size_t distance = edit_distance(typed, name);
  const std::vector<std::string> name_words = split(name, '_');
  const std::vector<std::string> typed_words = split(typed, '_');
  const bool subset = typed_words.size() > 1 &&
                      std::all_of(typed_words.begin(), typed_words.end(), [&](const std::string& word) {
                        return std::find(name_words.begin(), name_words.end(), word) != name_words.end();
                      });
  return subset ? std::min<size_t>(distance, 2) : distance;
}

}  // namespace

std::string nearest_spelling(std::string_view typed, const std::vector<std::string>& names) {
  const std::string prefix(typed.substr(0, 80));
  std::string best;
  size_t best_distance = std::max<size_t>(2, prefix.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t distance = spelling_distance(prefix, name);
    if (distance < best_distance ||
        (distance == best_distance && !best.empty() && name.size() < best.size())) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace teratron
