#include "teratron/comm/long_work.h"

#include <algorithm>
#include <chrono>
#include <future>

namespace teratron {

void run_without_timeout(HostGroup& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  std::future<void> working = std::async(std::launch::async, work);
  constexpr std::chrono::milliseconds longest(250);
  std::chrono::milliseconds pause(5);
  while (true) {
    const bool is_done = working.wait_for(pause) == std::future_status::ready;
    const std::vector<std::string> all = group.gather_bytes(is_done ? "1" : "0");
    const bool all_done = std::find(all.begin(), all.end(), "0") == all.end();
    if (group.broadcast_bytes(all_done ? "1" : "0") == "1") break;
    pause = std::min(pause * 3 / 2, longest);
  }
  working.get();
}

}  // namespace teratron
