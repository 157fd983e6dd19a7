#include "teratron/generate/memory/beam_pages.h"

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

namespace {

// Hands out what is not in use.
class Spare {
 public:
  Spare(const std::vector<int32_t>& all, const std::set<int32_t>& used) : count_(all.size()) {
    std::ranges::copy_if(all, std::back_inserter(spare_),
                         [&](int32_t number) { return !used.contains(number); });
  }
  int32_t take() {
    TERATRON_ASSERT(taken_ < spare_.size(), "the beams need more than {}", count_);
    return spare_[taken_++];
  }

 private:
  size_t count_;
  std::vector<int32_t> spare_;
  size_t taken_ = 0;
};

// The first continuation goes on in what its parent has, another one in a copy.
int32_t kept_or_copied(int32_t parents, std::set<int32_t>& kept, Spare& spare, StateCopies::Pairs& copies) {
  if (kept.insert(parents).second) return parents;
  copies.from.push_back(parents);
  copies.to.push_back(spare.take());
  return copies.to.back();
}

}  // namespace

BeamPages::Fork BeamPages::fork(const std::vector<Beam>& beams, const std::vector<int64_t>& parents,
                                int64_t length) const {
  std::set<int32_t> used_pages, used_slots;
  for (const Beam& beam : beams) used_pages.insert(beam.table.begin(), beam.table.end());
  for (const int64_t parent : parents) used_slots.insert(beams[parent].slot);
  Spare pages(all_, used_pages), slots(slots_, used_slots);
  const int64_t full = length / page_size_;
  const bool has_partial = length % page_size_ != 0;
  std::set<int32_t> kept_pages, kept_slots;
  Fork fork;
  for (const int64_t parent : parents) {
    const Beam& from = beams[parent];
    Beam& beam = fork.beams.emplace_back(Beam{{from.table.begin(), from.table.begin() + full}, 0});
    beam.table.push_back(has_partial ? kept_or_copied(from.table[full], kept_pages, pages, fork.copies.pages)
                                     : pages.take());
    beam.slot = kept_or_copied(from.slot, kept_slots, slots, fork.copies.slots);
  }
  return fork;
}

}  // namespace teratron
