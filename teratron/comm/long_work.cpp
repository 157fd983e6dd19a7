#include "teratron/comm/long_work.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "teratron/comm/collective_errors.h"
#include "teratron/comm/stopped.h"

namespace teratron {

namespace {

using Work = std::function<void(const std::stop_token&)>;

/// Work in another thread. Its destructor asks it to stop and waits for that.
class Worker {
 public:
  explicit Worker(const Work& work)
      : outcome_(promise_.get_future()), thread_([this, &work](const std::stop_token& stop) {
          promise_.set_value(capture([&] { return run(work, stop); }));
        }) {}

  void wait_for(std::chrono::milliseconds time) {
    if (result_.empty() && outcome_.wait_for(time) == std::future_status::ready) result_ = outcome_.get();
  }
  bool is_running() const { return result_.empty(); }
  bool has_failed() const { return result_.starts_with('-'); }
  void stop() { thread_.request_stop(); }
  /// What capture() returned, once the work has ended. Work that was stopped is a success.
  const std::string& outcome() const { return result_; }

 private:
  static std::string run(const Work& work, const std::stop_token& stop) {
    try {
      work(stop);
    } catch (const Stopped&) {  // another rank failed, and says why
    }
    return "";
  }

  std::promise<std::string> promise_;
  std::future<std::string> outcome_;
  std::string result_;
  std::jthread thread_;
};

constexpr char running = 'r', done = 'd', failed = 'f';
constexpr const char *go_on = "go on", *stop = "stop", *end = "end";

/// Rank 0, which knows the state of all.
std::string next_of(const std::vector<std::string>& states) {
  const auto any = [&states](char state) { return std::ranges::count(states, std::string(1, state)) > 0; };
  if (!any(running)) return end;
  return any(failed) ? stop : go_on;
}

}  // namespace

void run_without_timeout(HostGroup& group, const Work& work) {
  if (group.size() == 1) return work({});
  Worker worker(work);
  constexpr std::chrono::milliseconds longest(250);
  std::chrono::milliseconds pause(5);
  while (true) {
    if (worker.is_running()) {
      worker.wait_for(pause);
    } else {
      std::this_thread::sleep_for(pause);
    }
    const char state = worker.is_running() ? running : worker.has_failed() ? failed : done;
    const std::vector<std::string> states = group.gather_bytes(std::string(1, state));
    const std::string next = group.broadcast_bytes(group.rank() == 0 ? next_of(states) : "");
    if (next == end) break;
    if (next == stop) worker.stop();
    pause = std::min(pause * 3 / 2, longest);
  }
  combine_outcomes(worker.outcome(), group, [](const std::vector<std::string>&) { return ""; });
}

}  // namespace teratron
