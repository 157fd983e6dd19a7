#include "teratron/comm/host/rank_list.h"

#include "teratron/base/error.h"

namespace teratron {

RankList::RankList(const std::vector<int64_t>& ranks) : size_(std::ssize(ranks)) {
  TERATRON_ASSERT(size_ > 0, "a group without ranks");
  first_ = ranks[0];
  // Each level is as long as the distance between its points stays the same.
  for (int64_t step = 1; step < size_;) {
    const int64_t distance = ranks[step] - first_;
    int64_t count = 2;
    while (count * step < size_ && ranks[count * step] == first_ + count * distance) ++count;
    levels_.push_back({count, distance});
    step *= count;
  }
  int64_t points = 1;
  for (const Level& level : levels_) points *= level.size;
  if (points == size_ && all() == ranks) return;
  levels_.clear();
  ranks_ = ranks;
}

int64_t RankList::operator[](int64_t i) const {
  TERATRON_ASSERT(i >= 0 && i < size_, "position {} in a group of {}", i, size_);
  if (!ranks_.empty()) return ranks_[i];
  int64_t rank = first_;
  for (const Level& level : levels_) {
    rank += i % level.size * level.distance;
    i /= level.size;
  }
  return rank;
}

std::optional<int64_t> RankList::find(int64_t rank) const {
  for (int64_t i = 0; i < size_; ++i) {
    if ((*this)[i] == rank) return i;
  }
  return std::nullopt;
}

std::vector<int64_t> RankList::all() const {
  std::vector<int64_t> ranks(size_);
  for (int64_t i = 0; i < size_; ++i) ranks[i] = (*this)[i];
  return ranks;
}

}  // namespace teratron
