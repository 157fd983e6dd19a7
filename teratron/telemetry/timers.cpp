#include "teratron/telemetry/timers.h"

#include <algorithm>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

Timers::Timers(int level, std::function<void()> synchronize)
    : level_(level), synchronize_(std::move(synchronize)) {}

Timers::Scope::Scope(Timers* timers, size_t index) : timers_(timers), index_(index) {
  if (timers_ == nullptr) return;
  if (timers_->synchronize_) timers_->synchronize_();
  start_ = Clock::now();
}

Timers::Scope::~Scope() {
  if (timers_ == nullptr) return;
  if (timers_->synchronize_) timers_->synchronize_();
  timers_->entries_[index_].seconds += std::chrono::duration<double>(Clock::now() - start_).count();
}

Timers::Scope Timers::scope(std::string_view name, int level) {
  if (level > level_) return {nullptr, 0};
  return {this, index_of(name)};
}

Timers::Scope Timers::scope(Timers* timers, std::string_view name, int level) {
  if (timers == nullptr) return {nullptr, 0};
  return timers->scope(name, level);
}

size_t Timers::index_of(std::string_view name) {
  const auto known =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
  if (known != entries_.end()) return static_cast<size_t>(known - entries_.begin());
  entries_.push_back({std::string(name)});
  return entries_.size() - 1;
}

TimerReadings Timers::milliseconds(int64_t iterations) const {
  TERATRON_ASSERT(iterations > 0);
  TimerReadings readings;
  for (const Entry& entry : entries_) {
    if (entry.seconds == 0.0) continue;
    readings.emplace_back(entry.name, entry.seconds * 1000.0 / static_cast<double>(iterations));
  }
  return readings;
}

void Timers::reset() {
  for (Entry& entry : entries_) entry.seconds = 0.0;
}

TimerMetrics reduce_timers(const std::vector<TimerReadings>& per_rank) {
  TimerMetrics metrics;
  for (const TimerReadings& readings : per_rank) {
    for (const auto& [name, milliseconds] : readings) {
      auto row = std::find_if(metrics.rows.begin(), metrics.rows.end(),
                              [&](const TimerMetrics::Row& known) { return known.name == name; });
      if (row == metrics.rows.end()) {
        row = metrics.rows.insert(row, {.name = name, .min_ms = milliseconds, .max_ms = milliseconds});
      }
      row->min_ms = std::min(row->min_ms, milliseconds);
      row->max_ms = std::max(row->max_ms, milliseconds);
      row->per_rank_ms.push_back(milliseconds);
    }
  }
  return metrics;
}

}  // namespace teratron
