#include "teratron/telemetry/timers.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/comm/ranks/tree.h"

namespace teratron {
namespace {

using nlohmann::json;

std::string to_bytes(const TimerMetrics& timers) {
  json rows = json::array();
  for (const TimerMetrics::Row& row : timers.rows)
    rows.push_back(json::array({row.name, row.min_ms, row.max_ms, row.per_rank_ms}));
  return rows.dump();
}

TimerMetrics from_bytes(const std::string& bytes) {
  TimerMetrics timers;
  for (const json& row : json::parse(bytes))
    timers.rows.push_back({row.at(0), row.at(1), row.at(2), row.at(3).get<std::vector<double>>()});
  return timers;
}

void add_row(TimerMetrics& timers, const TimerMetrics::Row& more) {
  const auto row = std::find_if(timers.rows.begin(), timers.rows.end(),
                                [&](const TimerMetrics::Row& known) { return known.name == more.name; });
  if (row == timers.rows.end()) {
    timers.rows.push_back(more);
    return;
  }
  row->min_ms = std::min(row->min_ms, more.min_ms);
  row->max_ms = std::max(row->max_ms, more.max_ms);
  row->per_rank_ms.insert(row->per_rank_ms.end(), more.per_rank_ms.begin(), more.per_rank_ms.end());
}

std::string merge_timers(const std::string& lower, const std::string& higher) {
  TimerMetrics all = from_bytes(lower);
  for (const TimerMetrics::Row& row : from_bytes(higher).rows) add_row(all, row);
  return to_bytes(all);
}

}  // namespace

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

TimerMetrics reduce_timers(HostGroup& ranks, const TimerReadings& mine, bool per_rank) {
  TimerMetrics own;
  for (const auto& [name, milliseconds] : mine) {
    own.rows.push_back({.name = name, .min_ms = milliseconds, .max_ms = milliseconds});
    if (per_rank) own.rows.back().per_rank_ms = {milliseconds};
  }
  const int64_t last = ranks.size() - 1;
  std::string merged = merge_up_tree(ranks, to_bytes(own), merge_timers);
  if (last > 0 && ranks.rank() == 0) ranks.send_bytes(last, merged);
  if (ranks.rank() != last) return {};
  if (last > 0) merged = ranks.receive_bytes(0);
  return from_bytes(merged);
}

}  // namespace teratron
