#include "teratron/comm/host/timeout_diagnosis.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/comm/ranks/tree.h"
#include "teratron/comm/transport/descriptor_limit.h"

namespace teratron {
namespace {

constexpr std::chrono::seconds kPatience{8};  // with the diagnosis of a lower rank
constexpr int64_t kLastCalls = 32;            // of each rank that is asked, at first
constexpr size_t kMaxCompared = 4;            // ranks that are asked for all of their calls
constexpr size_t kAskedByOthers = 16;         // than the first rank of a group
constexpr int64_t kEnoughSilent = 8;          // ranks that do not answer: no others are asked
constexpr size_t kMaxDescribed = 8;           // late ranks in a message

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

TimeoutDiagnosis::TimeoutDiagnosis(ProcessBackend& backend, ProcessBackend::Lock& lock,
                                   const ProcessBackend::WaitCondition& wait)
    : backend_(backend), lock_(lock), wait_(wait), here_(backend.diagnosing_.insert(wait.group_id)) {}

/// Adds the replies of these ranks, and a trace of rank -1 for each that does not answer.
void TimeoutDiagnosis::ask(const std::vector<int64_t>& ranks) {
  Replies more = backend_.query(lock_, wait_.group_id, ranks, kLastCalls);
  for (const int64_t r : ranks) {
    if (!more.contains(r)) more[r].trace.rank = -1;
  }
  replies_.merge(more);
}

/// The nearest ancestor that answers diagnoses if it waits too, or will: its wait may have begun later.
void TimeoutDiagnosis::leave_to_ancestor() {
  const auto over = [&] { return job_failed() || (wait_.ready && wait_.ready()); };
  for (int64_t at = position_of(backend_.rank()); at > 0 && !over();) {
    at = tree_parent(at);
    const int64_t ancestor = members()[at];
    ask({ancestor});
    const StatusReply& reply = replies_.at(ancestor);
    if (reply.trace.rank < 0) continue;
    if (reply.trace.count < wait_.sequence) return;
    bool diagnoses = true;
    while (diagnoses && !backend_.changed_.wait_for(lock_, kPatience, over)) {
      const Replies now = backend_.query(lock_, wait_.group_id, {ancestor}, /*calls=*/1);
      diagnoses = now.contains(ancestor) && now.at(ancestor).diagnoses;
    }
    return;
  }
}

/// The lowest `most` ranks that were not asked yet, of: the missing ones, those that other ranks in the same
/// collective wait for, and those below a silent rank in the tree.
std::vector<int64_t> TimeoutDiagnosis::next_to_ask(size_t most) const {
  const RankList& members = this->members();
  std::vector<bool> wanted(static_cast<size_t>(backend_.size()));  // by rank: there may be many
  const auto want = [&](int64_t rank) { wanted.at(static_cast<size_t>(rank)) = true; };
  for (const int64_t rank : wait_.missing()) want(rank);
  for (const auto& [rank, reply] : replies_) {
    if (rank == backend_.rank()) continue;
    if (reply.wait && reply.wait->sequence == wait_.sequence) {
      for (const int64_t waited_for : reply.wait->for_ranks) {
        if (members.find(waited_for)) want(waited_for);
      }
    }
    if (reply.trace.rank >= 0 || !has_tree()) continue;
    const int64_t at = position_of(rank), size = members.size();
    const int64_t below = at == 0 ? size : std::min(size, at + (at & -at));
    for (int64_t i = at; i < below; ++i) want(members[i]);
  }
  for (const auto& [rank, reply] : replies_) wanted.at(static_cast<size_t>(rank)) = false;
  wanted.at(static_cast<size_t>(backend_.rank())) = false;
  std::vector<int64_t> next;
  for (int64_t rank = 0; rank < backend_.size() && next.size() < most; ++rank) {
    if (wanted[static_cast<size_t>(rank)]) next.push_back(rank);
  }
  return next;
}

/// Status replies of: our ancestors in the tree, the ranks we wait for, and the ranks those wait for.
void TimeoutDiagnosis::query_waited_for() {
  if (has_tree()) leave_to_ancestor();
  const bool first = position_of(backend_.rank()) == 0;
  size_t left = first ? most_asked_by_first(backend_.size()) : kAskedByOthers;
  while (!job_failed() && left > 0) {
    const int64_t silent = std::count_if(replies_.begin(), replies_.end(),
                                         [](const auto& item) { return item.second.trace.rank < 0; });
    const std::vector<int64_t> next = next_to_ask(std::min(left, kQueriedAtOnce));
    if (next.empty() || silent >= kEnoughSilent) break;
    left -= next.size();
    ask(next);
  }
}

/// "" if their calls are the same. If the last ones differ from the first, the ranks that differ say what they
/// did before.
std::string TimeoutDiagnosis::mismatch_among(uint64_t group_id, const Replies& replies) {
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
    if (trace.rank < 0 || trace.fingerprints.empty() || trace.rank == backend_.rank()) continue;
    const std::string* call = sequence ? trace.at(*sequence) : &trace.fingerprints.back();
    if (call && kinds.size() < kMaxCompared)
      kinds.emplace(fmt::format("{} {}", trace.count, *call), trace.rank);
  }
  std::vector<int64_t> ranks;
  for (const auto& [kind, rank] : kinds) ranks.push_back(rank);
  const Replies all_calls = backend_.query(lock_, group_id, ranks, kMaxCallsInReply);
  const std::string earlier = first_mismatch(traces_of(all_calls));
  return earlier.empty() ? first_mismatch(traces) : earlier;
}

/// A mismatch between this rank and `ranks` in another group (any of them, if there are several). On a GPU,
/// ranks that differ continue, and may then wait in a group in which they agree.
std::string TimeoutDiagnosis::mismatch_elsewhere(const std::vector<int64_t>& ranks) {
  for (const auto& [other, members] : std::map(backend_.groups_)) {
    std::vector<int64_t> shared = ranks;
    std::erase_if(shared, [&](int64_t r) { return !members.find(r); });
    if (other == wait_.group_id || shared.empty()) continue;
    const Replies replies = backend_.query(lock_, other, shared, kLastCalls);
    if (std::string found = mismatch_among(other, replies); !found.empty()) return found;
  }
  return "";
}

std::vector<std::string> TimeoutDiagnosis::describe_late() const {
  std::vector<std::string> late;
  for (const auto& [rank, reply] : replies_) {
    if (rank == backend_.rank() || reply.trace.rank >= 0) continue;
    const std::string address = backend_.transport_->unanswered_address(rank);
    late.push_back(fmt::format("{} does not answer: it is stopped or its node is unreachable{}",
                               backend_.describe_rank(rank), address.empty() ? "" : " at " + address));
  }
  for (const auto& [rank, reply] : replies_) {
    if (rank != backend_.rank() && reply.trace.rank >= 0 && reply.trace.count < wait_.sequence)
      late.push_back(fmt::format("rank {} {}", rank, reply.status));
  }
  const size_t count = late.size();
  if (count <= kMaxDescribed) return late;
  const size_t others = count - kMaxDescribed;
  const bool all = next_to_ask(1).empty();
  late.resize(kMaxDescribed);
  late.push_back(
      fmt::format("and {}{} {}", all ? "" : "at least ", others, others == 1 ? "other" : "others"));
  return late;
}

std::string TimeoutDiagnosis::cause() {
  query_waited_for();
  if (job_failed()) return backend_.failure_->what();
  if (std::string found = mismatch_among(wait_.group_id, replies_); !found.empty()) return found;
  std::vector<int64_t> answered;
  for (const auto& [rank, reply] : replies_) {
    if (rank != backend_.rank() && reply.trace.rank >= 0) answered.push_back(rank);
  }
  if (answered.size() + 1 == replies_.size() && answered.size() <= kQueriedAtOnce) {
    if (std::string found = mismatch_elsewhere(answered); !found.empty()) return found;
  }
  const std::vector<std::string> late = describe_late();
  const double seconds = std::chrono::duration<double>(backend_.timeout()).count();
  return fmt::format("{} timed out after {:g} s: {}", wait_.what, seconds,
                     late.empty() ? "all ranks have entered it, so a device or the network is stuck"
                                  : fmt::format("{}", fmt::join(late, "; ")));
}

}  // namespace teratron
