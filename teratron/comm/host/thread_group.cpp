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
constexpr std::chrono::milliseconds kDeadlockCheckInterval{500};  // of a waiting rank's deadlock detection

}  // namespace

ThreadGroup::ThreadGroup(ThreadBackend& backend, std::vector<int64_t> ranks)
    : backend_(backend), ranks_(std::move(ranks)), members_(ranks_.size()), buffers_(ranks_.size()) {}

void ThreadGroup::wake_all() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (std::exchange(members_[i].waiting, false)) backend_.ranks_[ranks_[i]].waiting_in.reset();
  }
  ++backend_.progress_;
  changed_.notify_all();
}

void ThreadGroup::fail(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = reason.empty() ? "aborted" : reason;
  wake_all();
}

/// "" if all fingerprints are equal.
std::string ThreadGroup::mismatch() const {
  const auto same = [&](const Member& member) { return member.last == members_[0].last; };
  if (std::all_of(members_.begin(), members_.end(), same)) return "";
  std::vector<std::string> fingerprints;
  for (const Member& member : members_) fingerprints.push_back(to_string(member.last));
  return describe_mismatch(describe_group(ranks_), ranks_, fingerprints, started_ + 1);
}

std::string ThreadGroup::describe_status(const std::vector<int64_t>& members) const {
  std::vector<std::string> parts;
  for (int64_t i : members) {
    const auto& rank = backend_.ranks_[ranks_[i]];
    const RankStatus status{.waiting_in = rank.waiting_in.value_or(""),
                            .last_sequence = members_[i].sequence,
                            .last_collective = to_string(members_[i].last)};
    parts.push_back(fmt::format("rank {} {}", ranks_[i], rank.finished ? "has ended" : to_string(status)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void ThreadGroup::wait(Lock& lock, const WaitCondition& condition) {
  const auto deadline = Clock::now() + backend_.timeout_;
  auto& me = backend_.ranks_[ranks_[condition.rank]];
  while (!condition.ready()) {
    if (!failure_.empty()) throw Fault(failure_);
    auto ended = condition.missing();
    std::erase_if(ended, [&](int64_t i) { return !backend_.ranks_[ranks_[i]].finished; });
    if (!ended.empty()) {
      fail(fmt::format("{} cannot complete: {}", condition.what, describe_status(ended)));
      continue;
    }
    members_[condition.rank].waiting = true;
    me.waiting_in = condition.what;
    const int64_t progress = backend_.progress_;
    const auto status = changed_.wait_until(lock, std::min(deadline, Clock::now() + kDeadlockCheckInterval));
    if (status != std::cv_status::timeout || condition.ready()) continue;
    if (Clock::now() >= deadline) {
      const double seconds = std::chrono::duration<double>(backend_.timeout_).count();
      fail(fmt::format("{} timed out after {:g} s: {}", condition.what, seconds,
                       describe_status(condition.missing())));
    } else if (backend_.progress_ == progress && backend_.all_waiting()) {
      backend_.fail_all("deadlock: the ranks wait for each other: " + backend_.describe_waiting());
    }
  }
}

void ThreadGroup::arrive(Lock& lock, int64_t rank, CollectiveFingerprint fingerprint, Buffers buffers) {
  if (!failure_.empty()) throw Fault(failure_);
  Member& member = members_[rank];
  const int64_t sequence = ++member.sequence;
  TERATRON_ASSERT(sequence == started_ + 1, "two threads of rank {} in one group", ranks_[rank]);
  member.last = std::move(fingerprint);
  buffers_[rank] = buffers;
  if (++arrived_ == size()) {
    if (const std::string found = mismatch(); !found.empty()) {
      fail(found);
      throw Fault(failure_);
    }
    arrived_ = 0;
    started_ = sequence;
    wake_all();
    return;
  }
  const auto missing = [&] {
    std::vector<int64_t> members;
    for (int64_t i = 0; i < size(); ++i) {
      if (members_[i].sequence < sequence) members.push_back(i);
    }
    return members;
  };
  wait(lock, {.rank = rank,
              .what = describe_collective(to_string(member.last), sequence, describe_group(ranks_)),
              .ready = [&] { return started_ >= sequence; },
              .missing = missing});
}

void ThreadGroup::leave(Lock& lock, int64_t rank) {
  const int64_t sequence = members_[rank].sequence;
  if (++left_ == size()) {
    left_ = 0;
    finished_ = sequence;
    changed_.notify_all();
    return;
  }
  // Must not be interrupted: other ranks still use this rank's buffers (and never block).
  changed_.wait(lock, [&] { return finished_ >= sequence; });
}

void ThreadGroup::collective(int64_t rank, CollectiveFingerprint fingerprint, Buffers buffers,
                             const LocalWork& work) {
  fault_point("comm.collective");
  Lock lock(backend_.mutex_);
  arrive(lock, rank, std::move(fingerprint), buffers);
  lock.unlock();
  std::exception_ptr error;
  try {
    work(buffers_);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error)
    fail(fmt::format("rank {} failed inside a collective of {}", ranks_[rank], describe_group(ranks_)));
  leave(lock, rank);
  if (error) std::rethrow_exception(error);
}

void ThreadGroup::send(int64_t from, int64_t to, const CollectiveFingerprint& fingerprint,
                       std::span<const std::byte> bytes) {
  Message message{fingerprint, {bytes.begin(), bytes.end()}};
  const Lock lock(backend_.mutex_);
  if (!failure_.empty()) throw Fault(failure_);
  mailboxes_[{from, to}].push_back(std::move(message));
  wake_all();
}

void ThreadGroup::receive(int64_t from, int64_t to, const CollectiveFingerprint& fingerprint,
                          std::span<std::byte> bytes) {
  Lock lock(backend_.mutex_);
  auto& mailbox = mailboxes_[{from, to}];
  wait(lock, {.rank = to,
              .what = fmt::format("receive {} from rank {} in {}", to_string(fingerprint), ranks_[from],
                                  describe_group(ranks_)),
              .ready = [&] { return !mailbox.empty(); },
              .missing = [&] { return std::vector<int64_t>{from}; }});
  if (!failure_.empty()) throw Fault(failure_);
  const Message message = std::move(mailbox.front());
  mailbox.pop_front();
  if (message.fingerprint != fingerprint) {
    fail(fmt::format("rank {} sent {}, but rank {} receives {}", ranks_[from], to_string(message.fingerprint),
                     ranks_[to], to_string(fingerprint)));
    throw Fault(failure_);
  }
  lock.unlock();
  if (!bytes.empty()) std::memcpy(bytes.data(), message.bytes.data(), bytes.size());
}

void ThreadGroup::abort(const std::string& reason) {
  const Lock lock(backend_.mutex_);
  fail(reason);
}

ThreadBackend::ThreadBackend(int64_t ranks, std::chrono::milliseconds timeout)
    : timeout_(timeout), ranks_(ranks) {}

ThreadGroup& ThreadBackend::group(int64_t rank, const std::vector<int64_t>& ranks) {
  const std::lock_guard lock(mutex_);
  auto& list = groups_[ranks];
  const size_t index = ranks_[rank].groups_created[ranks]++;
  while (list.size() <= index) {
    list.emplace_back(*this, ranks);
    if (!failure_.empty()) list.back().fail(failure_);
  }
  return list[index];
}

bool ThreadBackend::all_waiting() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.finished || r.waiting_in; });
}

std::string ThreadBackend::describe_waiting() const {
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].waiting_in)
      parts.push_back(fmt::format("rank {} in {}", rank, *ranks_[rank].waiting_in));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void ThreadBackend::fail_all(const std::string& reason) {
  if (failure_.empty()) failure_ = reason.empty() ? "aborted" : reason;
  for (auto& [ranks, list] : groups_) {
    for (ThreadGroup& group : list) group.fail(reason);
  }
}

void ThreadBackend::finish(int64_t rank) {
  const std::lock_guard lock(mutex_);
  ranks_[rank].finished = true;
  for (auto& [ranks, list] : groups_) {
    for (ThreadGroup& group : list) group.changed_.notify_all();
  }
}

void ThreadBackend::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail_all(reason);
}

}  // namespace teratron
