#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/telemetry/sinks.h"

namespace teratron {
namespace {

void warn_dropped_sink(const std::string& name, const std::string& reason) {
  warn("metrics: {} failed and is switched off for the rest of the run: {}", name, printable(reason, 500));
}

}  // namespace

/// Shared between the hub and its thread, so that a thread that hangs in a system call can be left behind.
class MetricsHub::Channel {
 public:
  Channel(std::string name, std::unique_ptr<MetricsSink> sink, size_t limit)
      : name_(std::move(name)), sink_(std::move(sink)), limit_(limit) {}

  void push(const MetricsEvent& event) {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    if (queue_.size() >= limit_) {
      if (lost_++ == 0) warn("metrics: {} does not keep up; some events are dropped", name_);
      return;
    }
    queue_.push_back(event);
    changed_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) break;
      const MetricsEvent event = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      const std::string error = write(event);
      lock.lock();
      busy_ = false;
      if (!error.empty()) fail(error);
      changed_.notify_all();
    }
    done_ = true;
    changed_.notify_all();
  }

  bool wait_idle(double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return queue_.empty() && !busy_; });
  }

  /// Whether the thread has ended in time.
  bool close(double seconds) {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return done_; });
  }

  int64_t lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  const std::string& name() const { return name_; }

 private:
  std::string write(const MetricsEvent& event) {
    try {
      sink_->write(event);
      return "";
    } catch (const std::exception& error) {
      return *error.what() == '\0' ? "unknown error" : error.what();
    }
  }

  void fail(const std::string& error) {
    failed_ = true;
    lost_ += static_cast<int64_t>(queue_.size()) + 1;
    queue_.clear();
    warn_dropped_sink(name_, error);
  }

  const std::string name_;
  const std::unique_ptr<MetricsSink> sink_;
  const size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MetricsEvent> queue_;
  bool busy_ = false;
  bool failed_ = false;
  bool closing_ = false;
  bool done_ = false;
  int64_t lost_ = 0;
};

MetricsHub::~MetricsHub() {
  for (const auto& channel : channels_) {
    if (!channel->close(5.0)) warn("metrics: {} hangs; its last events are lost", channel->name());
  }
}

void MetricsHub::add_now(std::string name, std::unique_ptr<MetricsSink> sink) {
  direct_.push_back({std::move(name), std::move(sink)});
}

void MetricsHub::add_background(std::string name, std::unique_ptr<MetricsSink> sink) {
  auto channel = std::make_shared<Channel>(std::move(name), std::move(sink), queue_limit_);
  channels_.push_back(channel);
  // Detached, and ended by the destructor's close(): join() would wait for ever on a dead file server.
  std::thread([channel] { channel->run(); }).detach();
}

void MetricsHub::emit(const MetricsEvent& event) {
  for (Direct& direct : direct_) {
    if (!direct.sink) continue;
    try {
      direct.sink->write(event);
    } catch (const std::exception& error) {
      warn_dropped_sink(direct.name, error.what());
      direct.sink.reset();
      ++lost_direct_;
    }
  }
  for (const auto& channel : channels_) channel->push(event);
}

bool MetricsHub::flush(double seconds) {
  bool all = true;
  for (const auto& channel : channels_) all = channel->wait_idle(seconds) && all;
  return all;
}

int64_t MetricsHub::dropped() const {
  int64_t lost = lost_direct_;
  for (const auto& channel : channels_) lost += channel->lost();
  return lost;
}

}  // namespace teratron
