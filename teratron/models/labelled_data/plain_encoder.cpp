#include "teratron/models/labelled_data/plain_encoder.h"

#include <algorithm>
#include <iterator>

namespace teratron {

void PlainEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<int32_t> whole;
  tokenizer_.encode(text, whole);
  const auto added = std::ssize(ends_);
  for (auto before = added; before >= 0 && added <= std::ssize(whole); --before) {
    const bool begins = std::equal(ends_.begin(), ends_.begin() + before, whole.begin());
    if (!begins || !std::equal(ends_.begin() + before, ends_.end(), whole.end() - (added - before))) continue;
    ids.insert(ids.end(), whole.begin() + before, whole.end() - (added - before));
    return;
  }
  ids.insert(ids.end(), whole.begin(), whole.end());
}

}  // namespace teratron
