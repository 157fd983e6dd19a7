#include "teratron/comm/ranks/rank_list.h"

#include <algorithm>

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
  if (points == size_ && has_nested_levels() && all() == ranks) return;
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
  if (!ranks_.empty()) {
    const auto found = std::ranges::find(ranks_, rank);
    if (found == ranks_.end()) return std::nullopt;
    return found - ranks_.begin();
  }
  return find_in_levels(rank);
}

// From the largest distance on, each of which is longer than all smaller levels together.
std::optional<int64_t> RankList::find_in_levels(int64_t rank) const {
  int64_t offset = rank - first_, position = 0, points = size_;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    points /= level->size;
    const int64_t step = std::clamp<int64_t>(offset / level->distance, 0, level->size - 1);
    offset -= step * level->distance;
    position += step * points;
  }
  if (offset != 0) return std::nullopt;
  return position;
}

bool RankList::has_nested_levels() const {
  int64_t extent = 0;
  for (const Level& level : levels_) {
    if (level.distance <= extent) return false;
    extent += (level.size - 1) * level.distance;
  }
  return true;
}

std::vector<int64_t> RankList::all() const {
  std::vector<int64_t> ranks(size_);
  for (int64_t i = 0; i < size_; ++i) ranks[i] = (*this)[i];
  return ranks;
}

}  // namespace teratron
