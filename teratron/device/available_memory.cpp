#include "teratron/device/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace teratron {

namespace {

// The number after `name` in a file of lines "name number"; without a name the first; -1: none.
int64_t number_in(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  while (!name.empty() && file >> word && word != name) file.ignore(1000, '\n');
  int64_t number = -1;
  return file >> number ? number : -1;
}

}  // namespace

int64_t available_host_memory() {
  const int64_t kilobytes = number_in("/proc/meminfo", "MemAvailable:");
  int64_t available = kilobytes < 0 ? std::numeric_limits<int64_t>::max() : kilobytes * 1024;
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
  const int64_t used = number_in("/sys/fs/cgroup/memory.stat", "anon");
  if (limit >= 0 && used >= 0) available = std::min(available, limit - used);
  return available;
}

}  // namespace teratron
