#include "teratron/comm/host/process_backend.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <unistd.h>

#include "teratron/base/environment.h"
#include "teratron/base/hash.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/comm/host/timeout_diagnosis.h"
#include "teratron/comm/ranks/tree.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kMismatchCheckInterval{1};
constexpr std::chrono::seconds kReplyTimeout{3};    // after the last reply to a query
constexpr std::chrono::seconds kCauseHeadStart{2};  // for the rank that failed first to exit first

}  // namespace

ProcessBackend::ProcessBackend(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout)
    : rank_(transport->rank()),
      size_(transport->size()),
      timeout_(timeout),
      transport_(std::move(transport)) {
  transport_->start(*this);
  for (const int64_t rank : tree_neighbours(rank_, size_)) greet(rank);
}

ProcessBackend::~ProcessBackend() {
  Lock lock(mutex_);
  if (!finished_ && !failure_) {
    fail_locked(fmt::format("rank {} has exited", rank_), ExitCode::retryable, rank_);
  }
  // So that a launcher sees the failing rank exit first.
  if (failure_ && cause_ != rank_) {
    changed_.wait_for(lock, kCauseHeadStart, [&] { return peers_[cause_].lost; });
  }
  const bool failed = failure_.has_value();
  lock.unlock();
  transport_->close(failed);
}

std::unique_ptr<ProcessGroup> ProcessBackend::group(const std::vector<int64_t>& ranks) {
  TERATRON_ASSERT(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(), "rank {} is not in its group",
                  rank_);
  for (int64_t rank : ranks) TERATRON_ASSERT(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
  const std::lock_guard lock(mutex_);
  const uint64_t list = hash_text(fmt::format("{}", fmt::join(ranks, " ")));
  const int64_t index = groups_created_[list]++;
  const uint64_t id = hash_text(fmt::format("{} group [{}]", index, fmt::join(ranks, " ")));
  const bool unique = groups_.emplace(id, ranks).second;
  TERATRON_ASSERT(unique, "{} has the hash of another group", describe_group(ranks));
  return std::make_unique<ProcessGroup>(*this, ranks, id);
}

void ProcessBackend::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  post_to(connected(), {.kind = Frame::Kind::goodbye});
}

void ProcessBackend::fail(const std::string& reason, ExitCode code) {
  const std::lock_guard lock(mutex_);
  fail_locked(reason, code, rank_);
}

void ProcessBackend::fail_locked(const std::string& reason, ExitCode code, int64_t cause) {
  if (failure_) return;
  failure_.emplace(reason.empty() ? "aborted" : reason, code);
  cause_ = cause;
  changed_.notify_all();
  std::set<int64_t> near = connected();
  add_near(rank_, 2, near);
  near.erase(rank_);
  // Also if another rank failed first: peers must know the reason before they see this rank exit.
  post_to(near, {.kind = Frame::Kind::failure,
                 .group_id = static_cast<uint64_t>(cause),
                 .sequence = static_cast<int64_t>(code),
                 .text = failure_->what()});
}

/// Adds the ranks up to `distance` away in the tree. A rank that has ended passes nothing on: its neighbours
/// count as being at its place.
void ProcessBackend::add_near(int64_t rank, int64_t distance, std::set<int64_t>& ranks) const {
  if (distance == 0) return;
  for (const int64_t neighbour : tree_neighbours(rank, size_)) {
    const auto peer = peers_.find(neighbour);
    const bool ended = peer != peers_.end() && (peer->second.finished || peer->second.lost);
    const bool added = ranks.insert(neighbour).second;
    if (added || distance > 1) add_near(neighbour, ended && added ? distance : distance - 1, ranks);
  }
}

void ProcessBackend::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Fault(*failure_);
}

std::optional<Fault> ProcessBackend::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

HostTraffic ProcessBackend::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  HostTraffic traffic = traffic_;
  traffic.connections = transport_->connections();
  return traffic;
}

std::set<int64_t> ProcessBackend::connected() const {
  const std::lock_guard lock(traffic_mutex_);
  return greeted_;
}

/// The first message to a rank says who sends it.
void ProcessBackend::greet(int64_t to) {
  {
    const std::lock_guard lock(traffic_mutex_);
    if (!greeted_.insert(to).second) return;
  }
  send(to, {.kind = Frame::Kind::hello, .text = fmt::format("pid {} on {}", getpid(), host_name())}, {});
}

void ProcessBackend::send(int64_t to, const Frame& frame, ByteSpan body) {
  const std::vector<std::byte> head = encode_head(frame, body.size());
  {
    const std::lock_guard lock(traffic_mutex_);
    traffic_.messages += 1;
    traffic_.bytes += std::ssize(head) + std::ssize(body);
  }
  transport_->send(to, head, body);
}

void ProcessBackend::post(int64_t to, const Frame& frame, ByteSpan body) {
  if (to == rank_) {
    return dispatch(to, {frame.kind, frame.group_id, frame.sequence, frame.text, ByteBuffer(body)});
  }
  greet(to);
  send(to, frame, body);
}

void ProcessBackend::post_to(const std::set<int64_t>& ranks, const Frame& frame) {
  for (const int64_t rank : ranks) post(rank, frame, {});
}

void ProcessBackend::on_bytes(int64_t from, ByteSpan bytes) {
  FrameReader* reader = nullptr;
  {
    const std::lock_guard lock(mutex_);
    reader = &peers_[from].reader;  // the address is stable
  }
  try {
    reader->feed(bytes, [&](Frame frame) { dispatch(from, std::move(frame)); });
  } catch (const std::exception& error) {
    fail(fmt::format("rank {}: {}", from, error.what()), ExitCode::retryable);
  }
}

void ProcessBackend::on_lost(int64_t from) {
  const std::lock_guard lock(mutex_);
  peers_[from].lost = true;
  if (!peers_[from].finished) {
    fail_locked(fmt::format("{} has died: its connection was closed unexpectedly", describe_rank(from)),
                ExitCode::retryable, from);
  }
  changed_.notify_all();
}

void ProcessBackend::on_failure(const Fault& fault) {
  fail(fmt::format("rank {} failed: {}", rank_, fault.what()), fault.exit_code());
}

void ProcessBackend::dispatch(int64_t from, Frame frame) {
  using Kind = Frame::Kind;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  switch (frame.kind) {
    case Kind::hello:
      peer.name = frame.text;
      greet(from);
      break;
    case Kind::collective:
    case Kind::point_to_point:
      mailboxes_[{frame.group_id, frame.kind, from}].push_back(std::move(frame));
      break;
    case Kind::status_query:
      return reply_status(from, frame);
    case Kind::status_reply:
      peer.replies[frame.group_id] = parse_status(frame, from);
      break;
    case Kind::failure:
      if (frame.group_id >= static_cast<uint64_t>(size_)) {
        throw Fault(fmt::format("malformed message: failure of rank {} of {}", frame.group_id, size_));
      }
      fail_locked(frame.text, static_cast<ExitCode>(frame.sequence), static_cast<int64_t>(frame.group_id));
      break;
    case Kind::goodbye:
      peer.finished = true;
      ++departures_;
      break;
  }
  changed_.notify_all();
}

std::string ProcessBackend::describe_rank(int64_t rank) const {
  const auto peer = peers_.find(rank);
  const std::string name = peer == peers_.end() ? "" : peer->second.name;
  return name.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, name);
}

StatusReply ProcessBackend::own_status(uint64_t group_id, int64_t calls) const {
  const auto found = recorders_.find(group_id);
  const FlightRecorder none, &recorder = found == recorders_.end() ? none : found->second;
  const RankStatus status{.waiting_in = waiting_.empty() ? "" : waiting_.back()->what,
                          .last_sequence = recorder.count(),
                          .last_collective = recorder.last()};
  StatusReply reply{
      .status = to_string(status),
      .trace = {.rank = rank_, .count = recorder.count(), .fingerprints = recorder.newest(calls)},
      .diagnoses = diagnosing_.contains(group_id)};
  for (const WaitCondition* wait : waiting_) {
    if (wait->group_id != group_id) continue;
    reply.wait = {.sequence = wait->sequence, .for_ranks = wait->missing()};
    if (reply.wait->for_ranks.size() > kMaxAwaited) reply.wait->for_ranks.resize(kMaxAwaited);
  }
  return reply;
}

void ProcessBackend::reply_status(int64_t to, const Frame& query) {
  const StatusReply reply =
      own_status(query.group_id, std::clamp<int64_t>(query.sequence, 1, kMaxCallsInReply));
  const std::string body = status_body(reply);
  post(to, status_frame(query.group_id, reply), std::as_bytes(std::span(body)));
}

/// The status of this rank and of the `ranks` that reply. Ends when no reply has come for some seconds: a
/// slow rank is not taken for a stopped one. Releases the lock meanwhile; other threads may query too.
ProcessBackend::Replies ProcessBackend::query(Lock& lock, uint64_t group_id,
                                              const std::vector<int64_t>& ranks, int64_t calls) {
  Replies replies = {{rank_, own_status(group_id, calls)}};
  for (size_t begin = 0; begin < ranks.size() && !failure_; begin += kQueriedAtOnce) {
    const auto asked = std::span(ranks).subspan(begin, std::min(kQueriedAtOnce, ranks.size() - begin));
    for (const int64_t r : asked) {
      peers_[r].replies.erase(group_id);
      post(r, {.kind = Frame::Kind::status_query, .group_id = group_id, .sequence = calls}, {});
    }
    const auto pending = [&] {
      return std::count_if(asked.begin(), asked.end(), [&](int64_t r) {
        return !peers_[r].replies.contains(group_id) && !peers_[r].lost;
      });
    };
    for (auto left = pending(); left > 0 && !failure_;) {
      if (!changed_.wait_for(lock, kReplyTimeout, [&] { return pending() < left || failure_; })) break;
      left = pending();
    }
    for (const int64_t r : asked) {
      const auto reply = peers_[r].replies.find(group_id);
      if (reply != peers_[r].replies.end()) replies[r] = std::move(reply->second);
    }
  }
  return replies;
}

void ProcessBackend::fail_if_ended(const WaitCondition& condition) {
  std::vector<int64_t> finished = condition.missing();
  std::erase_if(finished, [&](int64_t r) { return !peers_[r].finished; });
  if (finished.empty()) return;
  fail_locked(fmt::format("{} cannot complete: {} ended", condition.what,
                          describe_ranks(finished) + (finished.size() == 1 ? " has" : " have")),
              ExitCode::retryable, rank_);
}

void ProcessBackend::wait(Lock& lock, const WaitCondition& condition) {
  const auto deadline = Clock::now() + timeout();
  {
    const std::lock_guard traffic_lock(traffic_mutex_);
    traffic_.waits += 1;
  }
  waiting_.push_back(&condition);
  int64_t departures = -1;
  while (!condition.ready() && !failure_) {
    if (std::exchange(departures, departures_) != departures_) fail_if_ended(condition);
    if (failure_) break;
    const bool idle = changed_.wait_until(lock, std::min(deadline, Clock::now() + kMismatchCheckInterval)) ==
                      std::cv_status::timeout;
    if (!idle || condition.ready() || failure_) continue;
    const std::string mismatch = condition.mismatch ? condition.mismatch() : "";
    if (!mismatch.empty()) {
      fail_locked(mismatch, ExitCode::retryable, rank_);
    } else if (Clock::now() >= deadline) {
      const std::string reason = TimeoutDiagnosis(*this, lock, condition).cause();
      if (!condition.ready()) fail_locked(reason, ExitCode::retryable, rank_);
    }
  }
  std::erase(waiting_, &condition);
  if (!condition.ready()) throw Fault(*failure_);
}

}  // namespace teratron
