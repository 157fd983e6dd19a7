#include "teratron/telemetry/metrics_logger.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/log.h"

namespace teratron {
namespace {

void warn_failed_writer(const std::string& name, const std::string& reason) {
  warn("metrics: {} failed and is switched off for the rest of the run: {}", name, printable(reason, 500));
}

}  // namespace

/// Shared between the logger and the thread, so that a thread that hangs in a system call can be abandoned.
class MetricsLogger::AsyncWriter {
 public:
  AsyncWriter(std::string name, std::unique_ptr<MetricsWriter> writer, size_t limit)
      : name_(std::move(name)), writer_(std::move(writer)), limit_(limit) {}

  void push(const MetricsEvent& event) {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    if (queue_.size() >= limit_) {
      if (dropped_++ == 0) warn("metrics: {} does not keep up; some events are dropped", name_);
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

  /// False if the thread has not ended in time.
  bool close(double seconds) {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return done_; });
  }

  int64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }
  const std::string& name() const { return name_; }

 private:
  std::string write(const MetricsEvent& event) {
    try {
      writer_->write(event);
      return "";
    } catch (const std::exception& error) {
      return *error.what() == '\0' ? "unknown error" : error.what();
    }
  }

  void fail(const std::string& error) {
    failed_ = true;
    dropped_ += static_cast<int64_t>(queue_.size()) + 1;
    queue_.clear();
    warn_failed_writer(name_, error);
  }

  const std::string name_;
  const std::unique_ptr<MetricsWriter> writer_;
  const size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MetricsEvent> queue_;
  bool busy_ = false;
  bool failed_ = false;
  bool closing_ = false;
  bool done_ = false;
  int64_t dropped_ = 0;
};

MetricsLogger::~MetricsLogger() {
  for (const auto& writer : async_) {
    if (!writer->close(5.0)) warn("metrics: {} hangs; its last events are lost", writer->name());
  }
}

void MetricsLogger::add_sync(std::string name, std::unique_ptr<MetricsWriter> writer) {
  sync_.push_back({std::move(name), std::move(writer)});
}

void MetricsLogger::add_async(std::string name, std::unique_ptr<MetricsWriter> writer) {
  async_.push_back(std::make_shared<AsyncWriter>(std::move(name), std::move(writer), queue_limit_));
  // Detached, and ended by the destructor's close(): join() would hang on a dead file server.
  std::thread([writer = async_.back()] { writer->run(); }).detach();
}

void MetricsLogger::log(const MetricsEvent& event) {
  for (auto& [name, writer] : sync_) {
    if (!writer) continue;
    try {
      writer->write(event);
    } catch (const std::exception& error) {
      warn_failed_writer(name, error.what());
      writer.reset();
      ++dropped_sync_;
    }
  }
  for (const auto& writer : async_) writer->push(event);
}

bool MetricsLogger::flush(double seconds) {
  bool all = true;
  for (const auto& writer : async_) all = writer->wait_idle(seconds) && all;
  return all;
}

int64_t MetricsLogger::dropped() const {
  int64_t total = dropped_sync_;
  for (const auto& writer : async_) total += writer->dropped();
  return total;
}

}  // namespace teratron
