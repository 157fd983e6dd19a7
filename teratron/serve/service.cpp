#include "teratron/serve/service.h"

#include <algorithm>

namespace teratron {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

PendingAnswer::News PendingAnswer::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return !tokens_.empty() || open_ == 0; });
  return {.tokens = std::exchange(tokens_, {}), .finished = open_ == 0, .failure = failure_};
}

Service::Service(RankedEngine& engine, const Options& options, Metrics& metrics)
    : engine_(engine), options_(options), metrics_(metrics) {}

std::shared_ptr<PendingAnswer> Service::submit(std::vector<GenerationRequest> requests, bool streams) {
  int64_t tokens = 0;
  for (const GenerationRequest& request : requests) {
    std::vector<Problem> problems = engine_.local().problems_of(request);
    if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
    tokens += static_cast<int64_t>(request.prompt.size());
  }
  const auto pending = std::make_shared<PendingAnswer>();
  pending->open_ = requests.size();
  pending->results_.resize(requests.size());
  pending->requests_ = std::move(requests);
  pending->streams_ = streams;
  {
    const std::lock_guard lock(mutex_);
    if (draining_) throw Overload{.stopping = true, .retry_after = metrics_.retry_after()};
    int64_t queued = waiting_;
    for (const Pending& each : incoming_) queued += static_cast<int64_t>(each->requests_.size());
    if (queued >= options_.max_waiting) throw Overload{.retry_after = metrics_.retry_after()};
    incoming_.push_back(pending);
  }
  arrived_.notify_one();
  metrics_.add_prompt_tokens(tokens);
  return pending;
}

void Service::cancel(const Pending& answer) {
  {
    const std::lock_guard lock(answer->mutex_);
    if (answer->open_ == 0) return;
  }
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(answer);
  }
  arrived_.notify_one();
}

bool Service::is_draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void Service::drain() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  arrived_.notify_one();
}

void Service::begin(const Pending& pending) {
  for (size_t i = 0; i < pending->requests_.size(); ++i) {
    GenerationRequest& request = pending->requests_[i];
    request.on_token = [this, pending, i](int64_t choice, const GeneratedToken& token) {
      if (!pending->began_) {
        pending->began_ = true;
        metrics_.add_first_token(seconds_since(pending->arrived_));
      }
      if (!pending->streams_) return;
      {
        const std::lock_guard lock(pending->mutex_);
        pending->tokens_.push_back({i, choice, token});
      }
      pending->changed_.notify_one();
    };
    const int64_t id = engine_.submit(std::move(request));
    pending->ids_.push_back(id);
    running_[id] = {pending, i};
  }
  pending->requests_.clear();
}

bool Service::take_messages() {
  std::vector<Pending> incoming, cancelled;
  bool draining = false;
  {
    const std::lock_guard lock(mutex_);
    incoming.swap(incoming_);
    cancelled.swap(cancelled_);
    draining = draining_;
    for (const Pending& pending : incoming) waiting_ += static_cast<int64_t>(pending->requests_.size());
  }
  for (const Pending& pending : incoming) begin(pending);
  for (const Pending& pending : cancelled) {
    for (const int64_t id : pending->ids_) engine_.cancel(id);
  }
  return !draining || !running_.empty() || !incoming.empty();
}

void Service::deliver() {
  for (GenerationResult& result : engine_.take_results()) {
    const auto found = running_.find(result.id);
    const auto [pending, index] = found->second;
    running_.erase(found);
    bool finished = false;
    {
      const std::lock_guard lock(pending->mutex_);
      pending->results_[index] = std::move(result);
      pending->open_ -= 1;
      finished = pending->open_ == 0;
    }
    if (!finished) continue;
    metrics_.add_request(seconds_since(pending->arrived_));
    pending->changed_.notify_one();
  }
  const int64_t tokens = engine_.local().generated_tokens();
  if (tokens > counted_tokens_) metrics_.add_generated_tokens(tokens - counted_tokens_);
  counted_tokens_ = tokens;
}

void Service::report_load() {
  const EngineLoad load = engine_.local().load();
  metrics_.set_load({.running = static_cast<int64_t>(running_.size()) - load.waiting,
                     .waiting = load.waiting,
                     .used_pages = load.used_pages,
                     .pages = load.pages});
  const std::lock_guard lock(mutex_);
  waiting_ = load.waiting;
}

void Service::wait_for_messages() {
  // The signal that stops the server wakes nobody.
  constexpr auto signal_interval = std::chrono::milliseconds(50);
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, signal_interval,
                    [&] { return !incoming_.empty() || !cancelled_.empty() || draining_; });
}

void Service::run_until_drained(const std::function<bool()>& should_stop) {
  // Other ranks wait for rank 0, and a rank that died shows by then.
  constexpr auto keep_alive_interval = std::chrono::seconds(1);
  Clock::time_point alive = Clock::now();
  while (true) {
    if (!is_draining() && should_stop()) drain();
    if (!take_messages()) return;
    const bool busy = engine_.step();
    deliver();
    report_load();
    if (busy) {
      alive = Clock::now();
      continue;
    }
    if (Clock::now() - alive > keep_alive_interval) {
      engine_.keep_alive();
      alive = Clock::now();
    }
    wait_for_messages();
  }
}

void Service::fail_all(const std::string& why) {
  drain();
  std::vector<Pending> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(incoming_);
  }
  for (const auto& [id, running] : running_) all.push_back(running.first);
  running_.clear();
  for (const Pending& pending : all) {
    {
      const std::lock_guard lock(pending->mutex_);
      pending->open_ = 0;
      pending->failure_ = why;
    }
    pending->changed_.notify_one();
  }
}

void Service::run(const std::function<bool()>& should_stop) {
  try {
    run_until_drained(should_stop);
  } catch (const std::exception& error) {
    fail_all(error.what());
    throw;
  }
}

}  // namespace teratron
