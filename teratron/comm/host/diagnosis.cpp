// Why a wait of ProcessBackend does not end in time.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/comm/host/process_backend.h"
#include "teratron/comm/host/tree.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kReplyTimeout{3};  // after the last reply to a query
constexpr std::chrono::seconds kPatience{8};      // with the diagnosis of a lower rank
constexpr int64_t kLastCalls = 32;                // of each rank that is asked, at first
constexpr int64_t kAllCalls = 1024;               // of ranks that differ
constexpr size_t kMaxCompared = 4;                // ranks that are asked for all of their calls
constexpr size_t kAskedAtOnce = 64;
constexpr size_t kMaxDescribed = 8;  // late ranks in a message

std::vector<FlightTrace> traces_of(const std::map<int64_t, StatusReply>& replies) {
  std::vector<FlightTrace> traces;
  for (const auto& [rank, reply] : replies) traces.push_back(reply.trace);
  return traces;
}

}  // namespace

StatusReply ProcessBackend::own_status(uint64_t group_id, int64_t calls) const {
  const auto found = recorders_.find(group_id);
  const FlightRecorder none, &recorder = found == recorders_.end() ? none : found->second;
  const RankStatus status{.waiting_in = waiting_.empty() ? "" : waiting_.back()->what,
                          .last_sequence = recorder.count(),
                          .last_collective = recorder.last()};
  StatusReply reply{
      .status = to_string(status),
      .trace = {.rank = rank_, .count = recorder.count(), .fingerprints = recorder.newest(calls)}};
  for (const WaitCondition* wait : waiting_) {
    if (wait->group_id != group_id) continue;
    reply.wait = {.sequence = wait->sequence, .for_ranks = wait->missing()};
    if (reply.wait->for_ranks.size() > kMaxAwaited) reply.wait->for_ranks.resize(kMaxAwaited);
  }
  return reply;
}

void ProcessBackend::reply_status(int64_t to, const Frame& query) {
  const StatusReply reply = own_status(query.group_id, std::clamp<int64_t>(query.sequence, 1, kAllCalls));
  const std::string body = status_body(reply);
  post(to, status_frame(query.group_id, reply), std::as_bytes(std::span(body)));
}

/// What this rank and those of `ranks` that reply say. Ends when no reply has come for some seconds: a rank
/// that is only slow is not taken for one that is stopped. Releases the lock meanwhile; other threads may
/// query too.
ProcessBackend::Replies ProcessBackend::query(Lock& lock, uint64_t group_id,
                                              const std::vector<int64_t>& ranks, int64_t calls) {
  Replies replies = {{rank_, own_status(group_id, calls)}};
  for (size_t begin = 0; begin < ranks.size() && !failure_; begin += kAskedAtOnce) {
    const auto asked = std::span(ranks).subspan(begin, std::min(kAskedAtOnce, ranks.size() - begin));
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

/// The parent in the tree of the group, which is a lower rank; nullopt for its first rank.
std::optional<int64_t> ProcessBackend::parent_in(uint64_t group_id) const {
  const RankList& members = groups_.at(group_id);
  const int64_t here = members.find(rank_).value();
  if (here == 0) return std::nullopt;
  return members[tree_parent(here)];
}

/// What the ranks that are waited for say and, if they wait in the same collective, those that they wait for.
/// If the parent waits too, its diagnosis is awaited before. A rank that does not answer has a trace of rank
/// -1.
ProcessBackend::Replies ProcessBackend::query_waited_for(Lock& lock, const WaitCondition& condition) {
  Replies replies;
  std::set<int64_t> asked = {rank_};
  const auto ask = [&](const std::vector<int64_t>& ranks) {
    asked.insert(ranks.begin(), ranks.end());
    Replies more = query(lock, condition.group_id, ranks, kLastCalls);
    for (const int64_t r : ranks) {
      if (!more.contains(r)) more[r].trace.rank = -1;
    }
    replies.merge(more);
  };
  const std::optional<int64_t> parent = parent_in(condition.group_id);
  const std::vector<int64_t> missing = condition.missing();
  std::set<int64_t> first;
  if (parent) first.insert(*parent);
  if (missing.size() <= kAskedAtOnce) first.insert(missing.begin(), missing.end());
  ask({first.begin(), first.end()});
  const bool parent_waits =
      parent && replies[*parent].trace.rank >= 0 && replies[*parent].trace.count >= condition.sequence;
  const auto over = [&] { return failure_ || (condition.ready && condition.ready()); };
  if (parent_waits) changed_.wait_for(lock, kPatience, over);
  while (!failure_) {
    std::set<int64_t> next;
    for (const int64_t r : condition.missing()) next.insert(r);
    for (const auto& [rank, reply] : replies) {
      const bool same = rank != rank_ && reply.wait && reply.wait->sequence == condition.sequence;
      if (same) next.insert(reply.wait->for_ranks.begin(), reply.wait->for_ranks.end());
    }
    std::erase_if(next, [&](int64_t r) { return r >= size_ || asked.contains(r); });
    if (next.empty()) break;
    ask({next.begin(), next.end()});
  }
  return replies;
}

/// "" if their calls are the same. If the last ones differ from the first, the ranks that differ say what they
/// did before.
std::string ProcessBackend::mismatch_among(Lock& lock, uint64_t group_id, const Replies& replies) {
  const std::vector<FlightTrace> traces = traces_of(replies);
  const std::optional<int64_t> sequence = first_difference(traces);
  int64_t first_known = 0;  // by all of them
  for (const FlightTrace& trace : traces) {
    if (trace.rank < 0 || trace.fingerprints.empty()) continue;
    first_known = std::max(first_known, trace.count - std::ssize(trace.fingerprints) + 1);
  }
  const bool may_be_earlier = first_known > 1 && (!sequence || *sequence <= first_known);
  if (!sequence && !may_be_earlier) return "";
  if (!may_be_earlier) return first_mismatch(traces);
  std::map<std::string, int64_t> kinds;  // one rank for each last call that differs
  for (const FlightTrace& trace : traces) {
    if (trace.rank < 0 || trace.fingerprints.empty() || trace.rank == rank_) continue;
    const std::string* call = sequence ? trace.at(*sequence) : &trace.fingerprints.back();
    if (call && kinds.size() < kMaxCompared)
      kinds.emplace(fmt::format("{} {}", trace.count, *call), trace.rank);
  }
  std::vector<int64_t> ranks;
  for (const auto& [kind, rank] : kinds) ranks.push_back(rank);
  const std::string earlier = first_mismatch(traces_of(query(lock, group_id, ranks, kAllCalls)));
  return earlier.empty() ? first_mismatch(traces) : earlier;
}

/// A mismatch between this rank and `ranks` in another group (any of them, if there are several). On a GPU,
/// ranks that differ continue, and may then wait in a group in which they agree.
std::string ProcessBackend::mismatch_elsewhere(Lock& lock, uint64_t group_id,
                                               const std::vector<int64_t>& ranks) {
  for (const auto& [other, members] : std::map(groups_)) {
    std::vector<int64_t> shared = ranks;
    std::erase_if(shared, [&](int64_t r) { return !members.find(r); });
    if (other == group_id || shared.empty()) continue;
    const Replies replies = query(lock, other, shared, kLastCalls);
    if (std::string found = mismatch_among(lock, other, replies); !found.empty()) return found;
  }
  return "";
}

std::vector<std::string> ProcessBackend::describe_late(const WaitCondition& condition,
                                                       const Replies& replies) const {
  std::vector<std::string> late;
  for (const auto& [rank, reply] : replies) {
    if (rank != rank_ && reply.trace.rank < 0)
      late.push_back(describe_rank(rank) + " does not answer: it is stopped or its node is unreachable");
  }
  for (const auto& [rank, reply] : replies) {
    if (rank != rank_ && reply.trace.rank >= 0 && reply.trace.count < condition.sequence)
      late.push_back(fmt::format("rank {} {}", rank, reply.status));
  }
  const size_t count = late.size();
  if (count > kMaxDescribed) {
    late.resize(kMaxDescribed);
    late.push_back(fmt::format("and {} more", count - kMaxDescribed));
  }
  return late;
}

/// Queries the missing ranks. Releases the lock meanwhile.
std::string ProcessBackend::diagnose_timeout(Lock& lock, const WaitCondition& condition) {
  const Replies replies = query_waited_for(lock, condition);
  if (failure_) return failure_->what();
  if (const std::string found = mismatch_among(lock, condition.group_id, replies); !found.empty())
    return found;
  std::vector<int64_t> answered;
  for (const auto& [rank, reply] : replies) {
    if (rank != rank_ && reply.trace.rank >= 0) answered.push_back(rank);
  }
  if (answered.size() + 1 == replies.size() && answered.size() <= kAskedAtOnce) {
    if (const std::string found = mismatch_elsewhere(lock, condition.group_id, answered); !found.empty())
      return found;
  }
  const std::vector<std::string> late = describe_late(condition, replies);
  const double seconds = std::chrono::duration<double>(timeout()).count();
  return fmt::format("{} timed out after {:g} s: {}", condition.what, seconds,
                     late.empty() ? "all ranks have entered it, so a device or the network is stuck"
                                  : fmt::format("{}", fmt::join(late, "; ")));
}

}  // namespace teratron
