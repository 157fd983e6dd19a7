// Why a wait of ProcessBackend does not end in time.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/comm/host/process_backend.h"
#include "teratron/comm/host/tree.h"
#include "teratron/comm/transport/descriptor_limit.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kReplyTimeout{3};  // after the last reply to a query
constexpr std::chrono::seconds kPatience{8};      // with the diagnosis of a lower rank
constexpr int64_t kLastCalls = 32;                // of each rank that is asked, at first
constexpr int64_t kAllCalls = 1024;               // of ranks that differ
constexpr size_t kMaxCompared = 4;                // ranks that are asked for all of their calls
constexpr size_t kAskedAtOnce = 64;
constexpr size_t kAskedByOthers = 16;  // than the first rank of a group
constexpr int64_t kEnoughSilent = 8;   // ranks that do not answer: no others are asked
constexpr size_t kMaxDescribed = 8;    // late ranks in a message

std::vector<FlightTrace> traces_of(const std::map<int64_t, StatusReply>& replies) {
  std::vector<FlightTrace> traces;
  for (const auto& [rank, reply] : replies) traces.push_back(reply.trace);
  return traces;
}

/// Each rank that is asked may need a connection: half of the descriptors are left for all else.
size_t most_asked_by_first(int64_t ranks) {
  return static_cast<size_t>(
      std::min(ranks, std::max<int64_t>(kAskedByOthers, raise_descriptor_limit() / 2)));
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

int64_t ProcessBackend::position_in(uint64_t group_id, int64_t rank) const {
  return groups_.at(group_id).find(rank).value();
}

/// Adds what they say. One that does not answer has a trace of rank -1.
void ProcessBackend::ask(Lock& lock, uint64_t group_id, const std::vector<int64_t>& ranks, Replies& replies) {
  Replies more = query(lock, group_id, ranks, kLastCalls);
  for (const int64_t r : ranks) {
    if (!more.contains(r)) more[r].trace.rank = -1;
  }
  replies.merge(more);
}

/// The nearest ancestor that answers diagnoses if it waits too, or will: its wait may have begun later.
void ProcessBackend::leave_to_ancestor(Lock& lock, const WaitCondition& condition, Replies& replies) {
  const auto over = [&] { return failure_ || (condition.ready && condition.ready()); };
  const uint64_t group_id = condition.group_id;
  for (int64_t at = position_in(group_id, rank_); at > 0 && !over();) {
    at = tree_parent(at);
    const int64_t ancestor = groups_.at(group_id)[at];
    ask(lock, group_id, {ancestor}, replies);
    const StatusReply& reply = replies.at(ancestor);
    if (reply.trace.rank < 0) continue;
    if (reply.trace.count < condition.sequence) return;
    bool diagnoses = true;
    while (diagnoses && !changed_.wait_for(lock, kPatience, over)) {
      const Replies now = query(lock, group_id, {ancestor}, /*calls=*/1);
      diagnoses = now.contains(ancestor) && now.at(ancestor).diagnoses;
    }
    return;
  }
}

/// Who is missing here, whom the others that wait in the same collective wait for, and who is below a rank
/// that does not answer; the lowest `most` of those that were not asked yet.
std::vector<int64_t> ProcessBackend::next_to_ask(const WaitCondition& condition, const Replies& replies,
                                                 size_t most) const {
  const RankList& members = groups_.at(condition.group_id);
  std::vector<bool> wanted(static_cast<size_t>(size_));  // by rank: there may be many
  const auto want = [&](int64_t rank) { wanted.at(static_cast<size_t>(rank)) = true; };
  for (const int64_t rank : condition.missing()) want(rank);
  for (const auto& [rank, reply] : replies) {
    if (rank == rank_) continue;
    if (reply.wait && reply.wait->sequence == condition.sequence) {
      for (const int64_t waited_for : reply.wait->for_ranks) {
        if (members.find(waited_for)) want(waited_for);
      }
    }
    const bool has_tree = condition.sequence != WaitCondition::kNoSequence;
    if (reply.trace.rank >= 0 || !has_tree) continue;
    const int64_t at = position_in(condition.group_id, rank), size = members.size();
    const int64_t below = at == 0 ? size : std::min(size, at + (at & -at));
    for (int64_t i = at; i < below; ++i) want(members[i]);
  }
  for (const auto& [rank, reply] : replies) wanted.at(static_cast<size_t>(rank)) = false;
  wanted.at(static_cast<size_t>(rank_)) = false;
  std::vector<int64_t> next;
  for (int64_t rank = 0; rank < size_ && next.size() < most; ++rank) {
    if (wanted[static_cast<size_t>(rank)]) next.push_back(rank);
  }
  return next;
}

/// What ancestors, the ranks that are waited for, and those that these wait for say.
ProcessBackend::Replies ProcessBackend::query_waited_for(Lock& lock, const WaitCondition& condition) {
  Replies replies;
  if (condition.sequence != WaitCondition::kNoSequence) leave_to_ancestor(lock, condition, replies);
  const bool first = position_in(condition.group_id, rank_) == 0;
  size_t left = first ? most_asked_by_first(size_) : kAskedByOthers;
  while (!failure_ && left > 0) {
    const int64_t silent = std::count_if(replies.begin(), replies.end(),
                                         [](const auto& item) { return item.second.trace.rank < 0; });
    const std::vector<int64_t> next = next_to_ask(condition, replies, std::min(left, kAskedAtOnce));
    if (next.empty() || silent >= kEnoughSilent) break;
    left -= next.size();
    ask(lock, condition.group_id, next, replies);
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
    if (rank == rank_ || reply.trace.rank >= 0) continue;
    const std::string address = transport_->unanswered_address(rank);
    late.push_back(fmt::format("{} does not answer: it is stopped or its node is unreachable{}",
                               describe_rank(rank), address.empty() ? "" : " at " + address));
  }
  for (const auto& [rank, reply] : replies) {
    if (rank != rank_ && reply.trace.rank >= 0 && reply.trace.count < condition.sequence)
      late.push_back(fmt::format("rank {} {}", rank, reply.status));
  }
  const size_t count = late.size();
  if (count <= kMaxDescribed) return late;
  const size_t others = count - kMaxDescribed;
  const bool all = next_to_ask(condition, replies, 1).empty();
  late.resize(kMaxDescribed);
  late.push_back(
      fmt::format("and {}{} {}", all ? "" : "at least ", others, others == 1 ? "other" : "others"));
  return late;
}

/// Queries the missing ranks. Releases the lock meanwhile.
std::string ProcessBackend::diagnose_timeout(Lock& lock, const WaitCondition& condition) {
  const auto here = diagnosing_.insert(condition.group_id);
  std::string cause = cause_of_timeout(lock, condition);
  diagnosing_.erase(here);
  return cause;
}

std::string ProcessBackend::cause_of_timeout(Lock& lock, const WaitCondition& condition) {
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
