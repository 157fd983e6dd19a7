// Worker threads that map a sequence of inputs and return the results in input order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace teratron {

/// The results do not depend on the number of workers. next() must be called by one thread at a time.
template <typename Input, typename Output>
class OrderedParallelMap {
 public:
  using Source = std::function<std::optional<Input>()>;
  using Function = std::function<Output(Input)>;

  /// `source` returns the next input, or nothing at the end; workers call it one at a time. `function` must
  /// be thread-safe. At most `ahead` inputs are in flight. 0 workers: next() calls both.
  OrderedParallelMap(int workers, int64_t ahead, Source source, Function function)
      : ahead_(ahead), source_(std::move(source)), function_(std::move(function)) {
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
  }
  OrderedParallelMap(const OrderedParallelMap&) = delete;
  OrderedParallelMap& operator=(const OrderedParallelMap&) = delete;
  ~OrderedParallelMap() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  /// The next result; nothing after the last one. Rethrows an exception of `function` in place of its result,
  /// and one of `source` as the last result.
  std::optional<Output> next() {
    if (workers_.empty()) {
      std::optional<Input> input = source_();
      return input ? std::optional(function_(*std::move(input))) : std::nullopt;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.contains(returned_) || (ended_ && returned_ == started_); });
    auto result = results_.extract(returned_);
    if (result.empty()) return {};
    ++returned_;
    changed_.notify_all();
    lock.unlock();
    if (result.mapped().error) std::rethrow_exception(result.mapped().error);
    return std::move(result.mapped().output);
  }

 private:
  struct Result {
    std::optional<Output> output;
    std::exception_ptr error;
  };

  void work() {
    while (true) {
      std::optional<Input> input;
      Result result;
      std::unique_lock source(source_mutex_);  // not mutex_: `source` may block on I/O
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || ended_ || started_ < returned_ + ahead_; });
      if (stopping_ || ended_) return;
      lock.unlock();
      capture(result, [&] { input = source_(); });
      lock.lock();
      ended_ = !input;
      const int64_t ticket = input || result.error ? started_++ : -1;
      lock.unlock();
      source.unlock();
      if (input) capture(result, [&] { result.output = function_(*std::move(input)); });
      lock.lock();
      if (ticket >= 0) results_.emplace(ticket, std::move(result));
      changed_.notify_all();
    }
  }

  template <typename Action>
  static void capture(Result& result, const Action& action) {
    try {
      action();
    } catch (...) {
      result.error = std::current_exception();
    }
  }

  const int64_t ahead_;
  const Source source_;
  const Function function_;

  std::mutex source_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Result> results_;  // not yet returned, by ticket
  int64_t started_ = 0;                // tickets given to workers
  int64_t returned_ = 0;
  bool ended_ = false;  // `source` has no more inputs
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace teratron
