#include "teratron/generate/beam_pages.h"

#include <algorithm>
#include <set>

#include "teratron/base/error.h"

namespace teratron {

int64_t BeamPages::needed(int64_t prompt, int64_t new_tokens, int64_t width, int64_t page_size) {
  const auto pages = [&](int64_t tokens) { return (tokens + page_size - 1) / page_size; };
  return pages(prompt) + width * (pages(new_tokens) + 2);
}

BeamPages::Table BeamPages::first(int64_t tokens) const {
  const int64_t count = (tokens + page_size_ - 1) / page_size_;
  return {all_.begin(), all_.begin() + count};
}

BeamPages::Fork BeamPages::fork(const std::vector<Table>& beams, const std::vector<int64_t>& parents,
                                int64_t length) const {
  std::set<int32_t> used;
  for (const Table& table : beams) used.insert(table.begin(), table.end());
  Table spare;
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(spare),
               [&](int32_t page) { return !used.contains(page); });
  size_t taken = 0;
  const auto take = [&] {
    TERATRON_ASSERT(taken < spare.size(), "the beams need more than {} pages", all_.size());
    return spare[taken++];
  };
  const int64_t full = length / page_size_;
  const bool has_partial = length % page_size_ != 0;
  std::set<int32_t> kept;
  Fork fork;
  for (const int64_t parent : parents) {
    const Table& from = beams[parent];
    Table& table = fork.tables.emplace_back(from.begin(), from.begin() + full);
    if (!has_partial) {
      table.push_back(take());
    } else if (kept.insert(from[full]).second) {
      table.push_back(from[full]);  // the first continuation goes on in its parent's page
    } else {
      table.push_back(take());
      fork.copied_from.push_back(from[full]);
      fork.copied_to.push_back(table.back());
    }
  }
  return fork;
}

}  // namespace teratron
