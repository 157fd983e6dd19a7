// Answers the requests of many threads with one engine, which one thread drives.
//
//   Service service(engine, options, metrics);                       // rank 0
//   std::thread http([&] { ... service.submit(requests) ... });
//   service.run([&] { return signals.received() != 0; });            // until asked to stop, then drains
//
// A thread that waits for an answer gets its tokens through PendingAnswer. What it holds is bounded by what
// the requests asked for, however slowly it is read.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "teratron/generate/ranked_engine.h"
#include "teratron/serve/metrics.h"

namespace teratron {

/// The answer to some requests that came together. Members without comment belong to the service.
class PendingAnswer {
 public:
  struct Token {
    size_t request;
    int64_t choice;
    GeneratedToken token;
  };
  struct News {
    std::vector<Token> tokens;  // since the last call
    bool finished = false;      // nothing more will come
    std::string failure;        // why there is no result; empty: there is
  };
  /// Waits until there is something new, `most` at the longest.
  News wait(std::chrono::milliseconds most);
  /// The result of each request, once finished.
  const std::vector<GenerationResult>& results() const { return results_; }

 private:
  friend class Service;
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Token> tokens_;
  std::vector<GenerationResult> results_;
  size_t open_ = 0;  // requests without a result
  bool cancelled_ = false;
  std::string failure_;
  // Used by the engine's thread.
  std::vector<GenerationRequest> requests_;
  std::vector<int64_t> ids_;
  bool streams_ = false, began_ = false;
  Clock::time_point arrived_ = Clock::now();
};

/// Why a request is not accepted.
struct Overload {
  bool stopping = false;  // the server drains; else its queue is full
  int retry_after = 1;    // seconds
};

class Service {
 public:
  struct Options {
    int64_t max_waiting = 256;  // requests in the queue
  };
  Service(RankedEngine& engine, const Options& options, Metrics& metrics);

  // Called by any thread.
  /// UserError: a request is invalid, and none is accepted. Throws Overload. `streams`: tokens are wanted.
  std::shared_ptr<PendingAnswer> submit(std::vector<GenerationRequest> requests, bool streams);
  /// Frees the places of an answer that nobody waits for.
  void cancel(const std::shared_ptr<PendingAnswer>& answer);
  bool is_draining() const;
  /// Accepts nothing more; run() ends when all is answered.
  void drain();

  /// Called by the engine's thread. A Fault of the engine ends all answers, and is thrown.
  void run(const std::function<bool()>& should_stop);

 private:
  using Pending = std::shared_ptr<PendingAnswer>;

  void run_until_drained(const std::function<bool()>& should_stop);
  /// False: there is nothing left to do, nor will there be.
  bool take_messages();
  void begin(const Pending& pending);
  void deliver();
  void report_load();
  void wait_for_messages();
  void fail_all(const std::string& why);

  RankedEngine& engine_;
  Options options_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Pending> incoming_, cancelled_;
  int64_t waiting_ = 0;  // in the engine's queue, when it was last looked at
  bool draining_ = false;
  // Used by the engine's thread.
  std::map<int64_t, std::pair<Pending, size_t>> running_;  // by id
  int64_t counted_tokens_ = 0;
};

}  // namespace teratron
