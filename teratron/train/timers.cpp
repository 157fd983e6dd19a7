#include "teratron/train/timers.h"

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

size_t Timers::index_of(std::string_view name) {
  const auto known =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
  if (known != entries_.end()) return static_cast<size_t>(known - entries_.begin());
  entries_.push_back({std::string(name)});
  return entries_.size() - 1;
}

std::vector<std::string> Timers::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  return names;
}

std::vector<double> Timers::milliseconds(int64_t iterations) const {
  TERATRON_ASSERT(iterations > 0);
  std::vector<double> values;
  for (const Entry& entry : entries_)
    values.push_back(entry.seconds * 1000.0 / static_cast<double>(iterations));
  return values;
}

void Timers::reset() {
  for (Entry& entry : entries_) entry.seconds = 0.0;
}

TimerMetrics reduce_timers(const std::vector<std::string>& names,
                           const std::vector<std::vector<double>>& per_rank) {
  TimerMetrics metrics;
  for (size_t i = 0; i < names.size(); ++i) {
    TimerMetrics::Row row{.name = names[i], .min_ms = 0.0, .max_ms = 0.0};
    for (size_t rank = 0; rank < per_rank.size(); ++rank) {
      TERATRON_ASSERT(per_rank[rank].size() == names.size(), "rank {} has other timers", rank);
      row.min_ms = rank == 0 ? per_rank[rank][i] : std::min(row.min_ms, per_rank[rank][i]);
      row.max_ms = std::max(row.max_ms, per_rank[rank][i]);
    }
    metrics.rows.push_back(std::move(row));
  }
  return metrics;
}

}  // namespace teratron
