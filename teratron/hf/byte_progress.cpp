#include "teratron/hf/byte_progress.h"

#include <algorithm>
#include <utility>

#include "teratron/base/log.h"

namespace teratron {

ByteProgress::ByteProgress(std::string what, int64_t total) : what_(std::move(what)), total_(total) {}

ByteProgress::~ByteProgress() {
  if (has_status_line()) status_line("");
}

void ByteProgress::add(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  const Clock::time_point now = Clock::now();
  const bool terminal = has_status_line();
  if (now - shown_ < (terminal ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10'000))) return;
  shown_ = now;
  constexpr double giga = 1e9;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double percent =
      100.0 * static_cast<double>(done_) / static_cast<double>(std::max<int64_t>(total_, 1));
  const std::string line =
      fmt::format("{} {:.2f} of {:.2f} GB ({:.0f} %, {:.2f} GB/s)", what_, static_cast<double>(done_) / giga,
                  static_cast<double>(total_) / giga, percent, static_cast<double>(done_) / giga / seconds);
  terminal ? status_line(line) : notice_line(line);
}

}  // namespace teratron
