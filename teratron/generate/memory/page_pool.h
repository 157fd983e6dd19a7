// Which pages, or slots, of the layers' states are in use. They have the same numbers on all ranks and in all
// layers.
#pragma once

#include <cstdint>
#include <vector>

namespace teratron {

class PagePool {
 public:
  /// Page 0 is never given out: rows that pad a batch write there.
  explicit PagePool(int64_t pages);
  int64_t free_pages() const { return free_; }
  int64_t pages() const { return static_cast<int64_t>(users_.size()); }
  /// `count` pages with one user each, one after the other where there is such a run; there must be as many
  /// free ones.
  std::vector<int32_t> take(int64_t count);
  void share(int32_t page) { users_[page] += 1; }
  /// The page is free when its last user has returned it.
  void give_back(int32_t page);
  int32_t users(int32_t page) const { return users_[page]; }

 private:
  std::vector<int32_t> users_;
  int64_t free_ = 0;
};

}  // namespace teratron
