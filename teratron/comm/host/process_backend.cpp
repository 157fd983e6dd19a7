#include "teratron/comm/host/process_backend.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <unistd.h>

#include "teratron/base/environment.h"
#include "teratron/base/hash.h"
#include "teratron/base/strings.h"
#include "teratron/comm/host/process_group.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kReplyTimeout{3};  // of a status query
constexpr std::chrono::seconds kMismatchCheckInterval{1};
constexpr std::chrono::seconds kCauseHeadStart{2};  // for the rank that failed first to exit first

}  // namespace

ProcessBackend::ProcessBackend(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout)
    : rank_(transport->rank()),
      size_(transport->size()),
      timeout_(timeout),
      peers_(size_),
      transport_(std::move(transport)) {
  transport_->start(*this);
  post_to_all({.kind = Frame::Kind::hello, .text = fmt::format("pid {} on {}", getpid(), host_name())});
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
  const int64_t index = groups_created_[ranks]++;
  const uint64_t id = hash_text(fmt::format("{} {}", index, describe_group(ranks)));
  groups_[id] = ranks;
  return std::make_unique<ProcessGroup>(*this, ranks, id);
}

void ProcessBackend::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  post_to_all({.kind = Frame::Kind::goodbye});
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
  // Also if another rank failed first: peers must know the reason before they see this rank exit.
  post_to_all({.kind = Frame::Kind::failure,
               .group_id = static_cast<uint64_t>(cause),
               .sequence = static_cast<int64_t>(code),
               .text = failure_->what()});
}

void ProcessBackend::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Fault(*failure_);
}

std::optional<Fault> ProcessBackend::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ProcessBackend::post(int64_t to, const Frame& frame, ByteSpan body) {
  if (to == rank_) {
    return dispatch(to, {frame.kind, frame.group_id, frame.sequence, frame.text, ByteBuffer(body)});
  }
  transport_->send(to, encode_head(frame, body.size()), body);
}

void ProcessBackend::post_to_all(const Frame& frame) {
  for (int64_t r = 0; r < size_; ++r) {
    if (r != rank_) post(r, frame, {});
  }
}

void ProcessBackend::on_bytes(int64_t from, ByteSpan bytes) {
  try {
    peers_[from].reader.feed(bytes, [&](Frame frame) { dispatch(from, std::move(frame)); });
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

void ProcessBackend::dispatch(int64_t from, Frame frame) {
  using Kind = Frame::Kind;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  switch (frame.kind) {
    case Kind::hello:
      peer.name = frame.text;
      break;
    case Kind::collective:
    case Kind::point_to_point:
      mailboxes_[{frame.group_id, frame.kind, from}].push_back(std::move(frame));
      break;
    case Kind::status_query:
      return reply_status(from, frame);
    case Kind::status_reply:
      peer.replies[frame.group_id] = std::move(frame);
      break;
    case Kind::failure:
      if (frame.group_id >= peers_.size()) {
        throw Fault(fmt::format("malformed message: failure of rank {} of {}", frame.group_id, size_));
      }
      fail_locked(frame.text, static_cast<ExitCode>(frame.sequence), static_cast<int64_t>(frame.group_id));
      break;
    case Kind::goodbye:
      peer.finished = true;
      break;
  }
  changed_.notify_all();
}

void ProcessBackend::reply_status(int64_t to, const Frame& query) {
  const auto found = recorders_.find(query.group_id);
  const FlightRecorder none, &recorder = found == recorders_.end() ? none : found->second;
  const RankStatus status{
      .waiting_in = waiting_in_, .last_sequence = recorder.count(), .last_collective = recorder.last()};
  const std::string trace = recorder.dump();
  post(to,
       {.kind = Frame::Kind::status_reply,
        .group_id = query.group_id,
        .sequence = recorder.count(),
        .text = to_string(status)},
       std::as_bytes(std::span(trace)));
}

std::string ProcessBackend::describe_rank(int64_t rank) const {
  const std::string& name = peers_[rank].name;
  return name.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, name);
}

/// This rank's own, or from the other rank's reply.
FlightTrace ProcessBackend::trace_of(int64_t rank, uint64_t group_id) const {
  if (rank == rank_) {
    const auto own = recorders_.find(group_id);
    if (own == recorders_.end()) return {.rank = rank};
    return {.rank = rank, .count = own->second.count(), .fingerprints = split(own->second.dump(), '\n')};
  }
  const Frame& reply = peers_[rank].replies.at(group_id);
  const ByteSpan lines = reply.body.bytes();
  const std::string_view text(reinterpret_cast<const char*>(lines.data()), lines.size());
  FlightTrace trace{.rank = rank, .count = reply.sequence, .fingerprints = split(text, '\n')};
  for (std::string& fingerprint : trace.fingerprints) fingerprint = printable(fingerprint, kMaxFrameText);
  return trace;
}

/// Status and traces of this rank and of those of `ranks` that reply. Releases the lock meanwhile; other
/// threads may query too.
ProcessBackend::QueryResult ProcessBackend::query(Lock& lock, uint64_t group_id,
                                                  const std::vector<int64_t>& ranks) {
  for (int64_t r : ranks) {
    peers_[r].replies.erase(group_id);
    post(r, {.kind = Frame::Kind::status_query, .group_id = group_id}, {});
  }
  const auto all_replied = [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int64_t r) { return peers_[r].replies.contains(group_id) || peers_[r].lost; });
  };
  changed_.wait_for(lock, kReplyTimeout, all_replied);
  QueryResult result{.traces = {trace_of(rank_, group_id)}, .status = {}};
  for (int64_t r : ranks) {
    const auto reply = peers_[r].replies.find(group_id);
    if (reply == peers_[r].replies.end()) continue;
    result.traces.push_back(trace_of(r, group_id));
    result.status[r] = reply->second.text;
  }
  std::sort(result.traces.begin(), result.traces.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return result;
}

/// A mismatch between this rank and `ranks` in another group (any of them, if there are several). On a GPU,
/// ranks that differ continue, and may then wait in a group in which they agree.
std::string ProcessBackend::mismatch_elsewhere(Lock& lock, uint64_t group_id,
                                               const std::vector<int64_t>& ranks) {
  for (const auto& [other, members] : std::map(groups_)) {
    std::vector<int64_t> shared = ranks;
    std::erase_if(shared,
                  [&](int64_t r) { return std::find(members.begin(), members.end(), r) == members.end(); });
    if (other == group_id || shared.empty()) continue;
    if (std::string found = first_mismatch(query(lock, other, shared).traces); !found.empty()) return found;
  }
  return "";
}

/// Queries the missing ranks. Releases the lock meanwhile.
std::string ProcessBackend::diagnose_timeout(Lock& lock, const WaitCondition& condition) {
  const std::vector<int64_t> missing = condition.missing();
  const QueryResult result = query(lock, condition.group_id, missing);
  if (const std::string found = first_mismatch(result.traces); !found.empty()) return found;
  if (result.status.size() == missing.size()) {
    if (const std::string found = mismatch_elsewhere(lock, condition.group_id, missing); !found.empty())
      return found;
  }
  std::vector<std::string> late;
  for (int64_t r : missing) {
    if (!result.status.contains(r)) {
      late.push_back(describe_rank(r) + " does not answer: it is stopped or its node is unreachable");
    }
  }
  for (const FlightTrace& trace : result.traces) {
    if (trace.rank != rank_ && !trace.at(condition.sequence)) {
      late.push_back(fmt::format("rank {} {}", trace.rank, result.status.at(trace.rank)));
    }
  }
  const double seconds = std::chrono::duration<double>(timeout()).count();
  return fmt::format("{} timed out after {:g} s: {}", condition.what, seconds,
                     late.empty() ? "all ranks have entered it, so a device or the network is stuck"
                                  : fmt::format("{}", fmt::join(late, "; ")));
}

void ProcessBackend::wait(Lock& lock, const WaitCondition& condition) {
  const auto deadline = Clock::now() + timeout();
  waiting_in_ = condition.what;
  while (!condition.ready() && !failure_) {
    std::vector<int64_t> finished = condition.missing();
    std::erase_if(finished, [&](int64_t r) { return !peers_[r].finished; });
    if (!finished.empty()) {
      fail_locked(fmt::format("{} cannot complete: {} ended", condition.what,
                              describe_ranks(finished) + (finished.size() == 1 ? " has" : " have")),
                  ExitCode::retryable, rank_);
      break;
    }
    const bool idle = changed_.wait_until(lock, std::min(deadline, Clock::now() + kMismatchCheckInterval)) ==
                      std::cv_status::timeout;
    if (!idle || condition.ready() || failure_) continue;
    const std::string mismatch = condition.mismatch ? condition.mismatch() : "";
    if (!mismatch.empty()) {
      fail_locked(mismatch, ExitCode::retryable, rank_);
    } else if (Clock::now() >= deadline) {
      const std::string reason = diagnose_timeout(lock, condition);
      fail_locked(reason, ExitCode::retryable, rank_);
    }
  }
  waiting_in_.clear();
  if (!condition.ready()) throw Fault(*failure_);
}

}  // namespace teratron
