#include "teratron/base/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPollInterval{
    200};  // until a thread that waits for the reader sees stop()

int64_t count_lines(const std::string& text) {
  return std::max<int64_t>(1, std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

class OutputQueue::State {
 public:
  explicit State(Options options) : options_(std::move(options)) {}

  void push(int fd, std::string text, Priority priority) {
    const std::lock_guard lock(mutex_);
    const bool urgent = priority == Priority::urgent;
    const size_t limit = options_.max_bytes * (urgent ? 2 : 1);
    if (closed_) return;
    if ((!dropping_ || urgent) && queued_bytes_ + text.size() <= limit) return enqueue(fd, std::move(text));
    dropping_ = true;
    dropped_lines_ += count_lines(text);
  }

  void push_if_idle(int fd, std::string text) {
    const std::lock_guard lock(mutex_);
    if (!closed_ && queue_.empty()) enqueue(fd, std::move(text));
  }

  bool flush(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const auto end = Clock::now() + 5 * patience;
    while (!queue_.empty() && Clock::now() < end) {
      const uint64_t before = written_bytes_;
      changed_.wait_for(lock, patience, [&] { return queue_.empty() || written_bytes_ != before; });
      if (!queue_.empty() && written_bytes_ == before) return false;
    }
    return queue_.empty();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  void write_all() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
      if (stopped_) return;
      write_front(lock);
    }
  }

 private:
  struct Entry {
    int fd;
    std::string text;
  };

  void enqueue(int fd, std::string text) {
    queued_bytes_ += text.size();
    queue_.push_back({fd, std::move(text)});
    changed_.notify_all();
  }

  /// The entry stays in the queue while it is written: a full queue includes it, flush() waits for it.
  void write_front(std::unique_lock<std::mutex>& lock) {
    const Entry& entry = queue_.front();  // references to a deque's elements survive push_back()
    lock.unlock();
    const int error = write_entry(entry);
    lock.lock();
    const int fd = entry.fd;
    if (error != 0) dropped_lines_ += count_lines(entry.text);
    queued_bytes_ -= entry.text.size();
    queue_.pop_front();
    if (error == EPIPE) close(lock);
    if (queue_.empty() && error == 0) report_dropped(fd);
    changed_.notify_all();
  }

  /// In pieces of PIPE_BUF, which a pipe that poll() reports as writable accepts at once. Returns errno.
  int write_entry(const Entry& entry) {
    for (size_t at = 0; at < entry.text.size();) {
      pollfd polled{entry.fd, POLLOUT, 0};
      if (poll(&polled, 1, static_cast<int>(kPollInterval.count())) <= 0) {
        if (is_stopped()) return 0;
        continue;
      }
      const size_t count = std::min<size_t>(PIPE_BUF, entry.text.size() - at);
      const ssize_t written = ::write(entry.fd, entry.text.data() + at, count);
      if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (written < 0) return errno;
      at += static_cast<size_t>(written);
      const std::lock_guard lock(mutex_);
      written_bytes_ += static_cast<uint64_t>(written);
      changed_.notify_all();
    }
    return 0;
  }

  bool is_stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  void close(std::unique_lock<std::mutex>& lock) {
    closed_ = true;
    queue_.clear();
    queued_bytes_ = 0;
    lock.unlock();
    if (options_.on_closed) options_.on_closed();
    lock.lock();
  }

  void report_dropped(int fd) {
    dropping_ = false;
    const int64_t lines = std::exchange(dropped_lines_, 0);
    if (lines == 0) return;
    enqueue(fd, fmt::format("notice: {} {} dropped here: nothing read this output{}{}\n", lines,
                            lines == 1 ? "line was" : "lines were", options_.elsewhere.empty() ? "" : ". ",
                            options_.elsewhere));
  }

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  size_t queued_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  int64_t dropped_lines_ = 0;
  bool dropping_ = false;  // until all queued text is written: no notice between every two lines
  bool closed_ = false;
  bool stopped_ = false;
};

OutputQueue::OutputQueue(Options options) : state_(std::make_shared<State>(std::move(options))) {
  // The thread inherits the mask: signals go to other threads, and a write to a pipe without reader is EPIPE.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread([state = state_] { state->write_all(); }).detach();
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

OutputQueue::~OutputQueue() {
  state_->stop();
}

void OutputQueue::push(int fd, std::string lines, Priority priority) {
  state_->push(fd, std::move(lines), priority);
}

void OutputQueue::push_if_idle(int fd, std::string text) {
  state_->push_if_idle(fd, std::move(text));
}

bool OutputQueue::flush(std::chrono::milliseconds patience) {
  return state_->flush(patience);
}

}  // namespace teratron
