#include "teratron/comm/host/thread_group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLookAround{500};  // how often a waiting rank looks for a deadlock

}  // namespace

Meeting::Meeting(Rendezvous& home, std::vector<int64_t> ranks)
    : home_(home), ranks_(std::move(ranks)), places_(ranks_.size()), buffers_(ranks_.size()) {}

void Meeting::release_all() {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (std::exchange(places_[i].waiting, false)) home_.ranks_[ranks_[i]].waits_in.reset();
  }
  ++home_.progress_;
  changed_.notify_all();
}

void Meeting::fail(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = reason.empty() ? "aborted" : reason;
  release_all();
}

/// The calls of all ranks where they differ, else nothing.
std::string Meeting::mismatch() const {
  const auto same = [&](const Place& place) { return place.call == places_[0].call; };
  if (std::all_of(places_.begin(), places_.end(), same)) return "";
  std::vector<std::string> calls;
  for (const Place& place : places_) calls.push_back(to_string(place.call));
  return difference(ranks_, calls, opened_ + 1);
}

std::string Meeting::where_they_are(const std::vector<int64_t>& missing) const {
  std::vector<std::string> parts;
  for (int64_t place : missing) {
    const auto& rank = home_.ranks_[ranks_[place]];
    const Place& last = places_[place];
    std::string where = to_string(Whereabouts{.waits_in = rank.waits_in.value_or(""),
                                              .last_number = last.calls,
                                              .last_call = to_string(last.call)});
    if (rank.finished) where = "has ended";
    parts.push_back(fmt::format("rank {} {}", ranks_[place], where));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void Meeting::wait(Lock& lock, const Waiting& waiting) {
  const auto begin = Clock::now();
  const auto deadline = begin + home_.timeout_;
  auto& me = home_.ranks_[ranks_[waiting.rank]];
  while (!waiting.ready()) {
    if (!failure_.empty()) throw Fault(failure_);
    auto ended = waiting.missing();
    std::erase_if(ended, [&](int64_t place) { return !home_.ranks_[ranks_[place]].finished; });
    if (!ended.empty()) {
      fail(fmt::format("{} cannot complete: {}", waiting.what, where_they_are(ended)));
      continue;
    }
    places_[waiting.rank].waiting = true;
    me.waits_in = waiting.what;
    const int64_t progress = home_.progress_;
    const auto status = changed_.wait_until(lock, std::min(deadline, Clock::now() + kLookAround));
    if (status != std::cv_status::timeout || waiting.ready()) continue;
    if (Clock::now() >= deadline) {
      const double seconds = std::chrono::duration<double>(home_.timeout_).count();
      fail(fmt::format("{} timed out after {:g} s: {}", waiting.what, seconds,
                       where_they_are(waiting.missing())));
    } else if (home_.progress_ == progress && home_.all_wait()) {
      home_.fail_all("the ranks wait for each other: " + home_.who_waits());
    }
  }
}

void Meeting::arrive(Lock& lock, int64_t rank, Call call, Buffers mine) {
  if (!failure_.empty()) throw Fault(failure_);
  Place& place = places_[rank];
  const int64_t sequence = ++place.calls;
  TERATRON_ASSERT(sequence == opened_ + 1, "two threads of rank {} in one group", ranks_[rank]);
  place.call = std::move(call);
  buffers_[rank] = mine;
  if (++arrived_ == size()) {
    if (const std::string difference = mismatch(); !difference.empty()) {
      fail(difference);
      throw Fault(failure_);
    }
    arrived_ = 0;
    opened_ = sequence;
    release_all();
    return;
  }
  const auto missing = [&] {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < size(); ++i) {
      if (places_[i].calls < sequence) places.push_back(i);
    }
    return places;
  };
  wait(lock, {.rank = rank,
              .what = collective_in_words(to_string(place.call), sequence, ranks_),
              .ready = [&] { return opened_ >= sequence; },
              .missing = missing});
}

void Meeting::leave(Lock& lock, int64_t rank) {
  const int64_t sequence = places_[rank].calls;
  if (++left_ == size()) {
    left_ = 0;
    closed_ = sequence;
    changed_.notify_all();
    return;
  }
  // Nothing may cut this wait short: others are still at work on this rank's buffers, and none of them
  // blocks.
  changed_.wait(lock, [&] { return closed_ >= sequence; });
}

void Meeting::collective(int64_t rank, Call call, Buffers mine, const Part& part) {
  fault_point("comm.collective");
  Lock lock(home_.mutex_);
  arrive(lock, rank, std::move(call), mine);
  lock.unlock();
  std::exception_ptr error;
  try {
    part(buffers_);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error)
    fail(fmt::format("rank {} failed inside a collective of {}", ranks_[rank], group_in_words(ranks_)));
  leave(lock, rank);
  if (error) std::rethrow_exception(error);
}

void Meeting::send(int64_t from, int64_t to, const Call& call, std::span<const std::byte> bytes) {
  Message message{call, {bytes.begin(), bytes.end()}};
  const Lock lock(home_.mutex_);
  if (!failure_.empty()) throw Fault(failure_);
  mail_[{from, to}].push_back(std::move(message));
  release_all();
}

void Meeting::receive(int64_t from, int64_t to, const Call& call, std::span<std::byte> bytes) {
  Lock lock(home_.mutex_);
  auto& box = mail_[{from, to}];
  wait(lock, {.rank = to,
              .what = fmt::format("receive {} from rank {} in {}", to_string(call), ranks_[from],
                                  group_in_words(ranks_)),
              .ready = [&] { return !box.empty(); },
              .missing = [&] { return std::vector<int64_t>{from}; }});
  if (!failure_.empty()) throw Fault(failure_);
  const Message message = std::move(box.front());
  box.pop_front();
  if (message.call != call) {
    fail(fmt::format("rank {} sent {}, but rank {} receives {}", ranks_[from], to_string(message.call),
                     ranks_[to], to_string(call)));
    throw Fault(failure_);
  }
  lock.unlock();
  if (!bytes.empty()) std::memcpy(bytes.data(), message.bytes.data(), bytes.size());
}

void Meeting::abort(const std::string& reason) {
  const Lock lock(home_.mutex_);
  fail(reason);
}

Rendezvous::Rendezvous(int64_t ranks, std::chrono::milliseconds timeout) : timeout_(timeout), ranks_(ranks) {}

Meeting& Rendezvous::meeting(int64_t rank, const std::vector<int64_t>& group) {
  const std::lock_guard lock(mutex_);
  auto& list = meetings_[group];
  const size_t index = ranks_[rank].meetings_asked[group]++;
  while (list.size() <= index) {
    list.emplace_back(*this, group);
    if (!failure_.empty()) list.back().fail(failure_);
  }
  return list[index];
}

bool Rendezvous::all_wait() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.finished || r.waits_in; });
}

std::string Rendezvous::who_waits() const {
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].waits_in) parts.push_back(fmt::format("rank {} in {}", rank, *ranks_[rank].waits_in));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void Rendezvous::fail_all(const std::string& reason) {
  if (failure_.empty()) failure_ = reason.empty() ? "aborted" : reason;
  for (auto& [group, list] : meetings_) {
    for (Meeting& meeting : list) meeting.fail(reason);
  }
}

void Rendezvous::finish(int64_t rank) {
  const std::lock_guard lock(mutex_);
  ranks_[rank].finished = true;
  for (auto& [group, list] : meetings_) {
    for (Meeting& meeting : list) meeting.changed_.notify_all();
  }
}

void Rendezvous::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail_all(reason);
}

}  // namespace teratron
