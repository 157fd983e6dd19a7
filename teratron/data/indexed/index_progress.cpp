#include "teratron/data/indexed/index_progress.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

namespace teratron {

std::string IndexProgress::text() const {
  const char* const step = step_;
  const int64_t total = total_;
  if (step == nullptr) return "";
  return fmt::format("{}, {} %", step, total > 0 ? 100 * static_cast<__int128>(done_) / total : 100);
}

PeriodicReport::PeriodicReport(std::chrono::milliseconds interval,
                               std::function<void(int64_t seconds)> report) {
  thread_ = std::thread([this, interval, report = std::move(report)] {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval, [this] { return ends_; })) {
      const auto elapsed = std::chrono::steady_clock::now() - begin;
      try {
        report(std::chrono::duration_cast<std::chrono::seconds>(elapsed).count());
      } catch (const std::exception&) {  // a report that fails must not end the build
      }
    }
  });
}

PeriodicReport::~PeriodicReport() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace teratron
