#include "teratron/generate/memory/page_pool.h"

#include "teratron/base/error.h"

namespace teratron {

PagePool::PagePool(int64_t pages) : users_(pages, 0), free_(pages - 1) {
  TERATRON_ASSERT(pages > 1);
  users_[0] = 1;
}

std::vector<int32_t> PagePool::take(int64_t count) {
  TERATRON_ASSERT(count <= free_, "{} pages of {}", count, free_);
  free_ -= count;
  std::vector<int32_t> taken;
  const auto size = static_cast<int32_t>(users_.size());
  // The first run that is long enough, else the first free pages.
  int32_t run = 0;
  for (int32_t page = 1; page < size && run < count; ++page) {
    run = users_[page] == 0 ? run + 1 : 0;
    if (run != count) continue;
    for (int32_t i = page - run + 1; i <= page; ++i) taken.push_back(i);
  }
  for (int32_t page = 1; static_cast<int64_t>(taken.size()) < count; ++page) {
    if (users_[page] == 0) taken.push_back(page);
  }
  for (const int32_t page : taken) users_[page] = 1;
  return taken;
}

void PagePool::give_back(int32_t page) {
  TERATRON_ASSERT(users_[page] > 0);
  users_[page] -= 1;
  if (users_[page] == 0) free_ += 1;
}

}  // namespace teratron
