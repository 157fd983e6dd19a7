#include "teratron/comm/host/process_group.h"

#include <algorithm>
#include <map>
#include <utility>

#include "teratron/base/fault_point.h"
#include "teratron/comm/host/timeout_diagnosis.h"
#include "teratron/comm/ranks/tree.h"

namespace teratron {

ProcessGroup::ProcessGroup(ProcessBackend& backend, const std::vector<int64_t>& ranks, uint64_t id)
    : backend_(backend),
      ranks_(ranks),
      name_(describe_group(ranks)),
      id_(id),
      rank_(ranks_.find(backend.rank()).value()) {}

int64_t ProcessGroup::record(const CollectiveFingerprint& fingerprint) {
  const std::lock_guard lock(backend_.mutex_);
  if (backend_.failure_) throw Fault(*backend_.failure_);
  return backend_.recorders_[id_].record(fingerprint);
}

std::string ProcessGroup::diagnose_timeout(const std::string& what, std::optional<int64_t> sequence) {
  ProcessBackend::Lock lock(backend_.mutex_);
  std::vector<int64_t> others = ranks_.all();
  std::erase(others, backend_.rank());
  const ProcessBackend::WaitCondition wait{
      .what = what,
      .group_id = id_,
      .sequence = sequence.value_or(ProcessBackend::WaitCondition::kNoSequence),
      .ready = {},
      .missing = [&] { return others; },
      .mismatch = {}};
  return TimeoutDiagnosis(backend_, lock, wait).cause();
}

std::string ProcessGroup::describe(const CollectiveFingerprint& fingerprint, int64_t sequence) const {
  return describe_collective(to_string(fingerprint), sequence, name_);
}

void ProcessGroup::begin(const CollectiveFingerprint& fingerprint) {
  fault_point("comm.collective");
  sequence_ = record(fingerprint);
  fingerprint_ = to_string(fingerprint);
}

void ProcessGroup::post_part(int64_t to, const std::string& text, ByteSpan part) {
  backend_.post(ranks_[to],
                {.kind = Frame::Kind::collective, .group_id = id_, .sequence = sequence_, .text = text},
                part);
}

void ProcessGroup::post_parts(const std::string& text, std::span<const ByteSpan> parts) {
  TERATRON_ASSERT(std::ssize(parts) == size());
  for (int64_t i = 0; i < size(); ++i) {
    if (i != rank_) post_part(i, text, parts[i]);
  }
}

/// "" if this rank issued, or will issue, the same collective at that number. Called with the lock.
std::string ProcessGroup::mismatch_with(const Frame& frame, int64_t from) const {
  const std::optional<std::string> mine = backend_.recorders_[id_].at(frame.sequence);
  if (!mine || frame.text.empty()) return "";
  const bool first = rank_ < from;
  const int64_t ranks[] = {ranks_[first ? rank_ : from], ranks_[first ? from : rank_]};
  const std::string fingerprints[] = {first ? *mine : frame.text, first ? frame.text : *mine};
  return describe_mismatch(name_, ranks, fingerprints, frame.sequence);
}

/// The next part from each of these ranks of the group.
std::vector<Frame> ProcessGroup::take_from(const std::vector<int64_t>& members) {
  ProcessBackend::Lock lock(backend_.mutex_);
  std::vector<std::deque<Frame>*> boxes;
  for (const int64_t i : members)
    boxes.push_back(&backend_.mailboxes_[{id_, Frame::Kind::collective, ranks_[i]}]);
  size_t arrived = 0;  // of the first members: a frame is looked at once, however many ranks there are
  const auto ready = [&] {
    while (arrived < boxes.size() && !boxes[arrived]->empty()) ++arrived;
    return arrived == boxes.size();
  };
  const auto missing = [&] {
    std::vector<int64_t> ranks;
    for (size_t k = 0; k < members.size(); ++k) {
      if (boxes[k]->empty()) ranks.push_back(ranks_[members[k]]);
    }
    return ranks;
  };
  const auto mismatch = [&] {
    std::string found;
    for (size_t k = 0; k < members.size() && found.empty(); ++k) {
      if (!boxes[k]->empty()) found = mismatch_with(boxes[k]->front(), members[k]);
    }
    return found;
  };
  backend_.wait(lock, {.what = describe_collective(fingerprint_, sequence_, name_),
                       .group_id = id_,
                       .sequence = sequence_,
                       .ready = ready,
                       .missing = missing,
                       .mismatch = mismatch});
  std::vector<Frame> frames;
  for (size_t k = 0; k < members.size(); ++k) {
    Frame& frame = frames.emplace_back(std::move(boxes[k]->front()));
    boxes[k]->pop_front();
    if (frame.sequence == sequence_) continue;
    std::string reason = mismatch_with(frame, members[k]);
    if (reason.empty()) {
      reason = fmt::format("malformed message: rank {} is at collective {} of {}, not {}", ranks_[members[k]],
                           frame.sequence, name_, sequence_);
    }
    backend_.fail_locked(reason, ExitCode::retryable, backend_.rank());
    throw Fault(*backend_.failure_);
  }
  return frames;
}

/// The next part from every other rank, by rank.
std::vector<Frame> ProcessGroup::collect() {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < size(); ++i) {
    if (i != rank_) others.push_back(i);
  }
  std::vector<Frame> frames = take_from(others);
  frames.insert(frames.begin() + rank_, Frame());
  return frames;
}

/// The messages of one collective. Those towards rank 0, and all of a broadcast, carry its fingerprint, with
/// which the receiver compares its own.
class ProcessGroup::TreePeers final : public BytePeers {
 public:
  TreePeers(ProcessGroup& group, const CollectiveFingerprint& fingerprint, bool broadcast = false)
      : group_(group), broadcast_(broadcast) {
    group_.begin(fingerprint);
  }
  int64_t rank() const override { return group_.rank(); }
  int64_t size() const override { return group_.size(); }

  void send_bytes(int64_t to, const std::string& bytes) override {
    const bool named = broadcast_ || to < rank();
    group_.post_part(to, named ? group_.fingerprint_ : "", std::as_bytes(std::span(bytes)));
  }

  /// The first message from below waits for all of them, so that a time-out names all that are missing.
  std::string receive_bytes(int64_t from) override {
    if (from > rank() && from_below_.empty()) {
      const std::vector<int64_t> children = tree_children(rank(), size());
      std::vector<Frame> frames = group_.take_from(children);
      for (size_t i = 0; i < children.size(); ++i) from_below_[children[i]] = std::move(frames[i]);
    }
    const Frame frame = std::move(from > rank() ? from_below_.at(from) : group_.take_from({from}).front());
    check_fingerprint(frame, from);
    const ByteSpan bytes = frame.body.bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  void check_fingerprint(const Frame& frame, int64_t from) const {
    const bool named = broadcast_ || from > rank();
    if (!named && frame.text.empty()) return;
    std::string mismatch;
    {
      const ProcessBackend::Lock lock(group_.backend_.mutex_);
      mismatch = group_.mismatch_with(frame, from);
    }
    if (mismatch.empty()) return;
    group_.backend_.fail(mismatch, ExitCode::retryable);
    group_.backend_.check();
  }

  ProcessGroup& group_;
  const bool broadcast_;
  std::map<int64_t, Frame> from_below_;
};

std::vector<std::string> ProcessGroup::all_gather(const std::string& bytes) {
  TreePeers peers(*this, {.operation = "all_gather_bytes"});
  return tree_all_gather(peers, bytes);
}

std::vector<std::string> ProcessGroup::gather(const std::string& bytes) {
  TreePeers peers(*this, {.operation = "gather_bytes"});
  return tree_gather(peers, bytes);
}

std::string ProcessGroup::broadcast(const std::string& bytes) {
  TreePeers peers(*this, {.operation = "broadcast_bytes"}, /*broadcast=*/true);
  return broadcast_down_tree(peers, bytes);
}

void ProcessGroup::barrier() {
  TreePeers peers(*this, {.operation = "barrier"});
  tree_barrier(peers);
}

std::vector<ByteBuffer> ProcessGroup::all_to_all(const CollectiveFingerprint& fingerprint,
                                                 std::span<const ByteSpan> parts) {
  begin(fingerprint);
  post_parts(fingerprint_, parts);
  std::vector<Frame> frames = collect();
  frames[rank_].text = fingerprint_;
  std::vector<std::string> fingerprints;
  std::vector<ByteBuffer> buffers;
  for (Frame& frame : frames) {
    fingerprints.push_back(std::move(frame.text));
    buffers.push_back(std::move(frame.body));
  }
  if (const std::string mismatch = describe_mismatch(name_, ranks_.all(), fingerprints, sequence_);
      !mismatch.empty()) {
    backend_.fail(mismatch, ExitCode::retryable);
    backend_.check();
  }
  return buffers;
}

std::vector<ByteBuffer> ProcessGroup::continue_all_to_all(std::span<const ByteSpan> parts) {
  post_parts("", parts);
  std::vector<ByteBuffer> buffers;
  for (Frame& frame : collect()) buffers.push_back(std::move(frame.body));
  return buffers;
}

void ProcessGroup::send(int64_t to, const CollectiveFingerprint& fingerprint, ByteSpan bytes) {
  backend_.check();
  backend_.post(ranks_[to],
                {.kind = Frame::Kind::point_to_point, .group_id = id_, .text = to_string(fingerprint)},
                bytes);
}

ByteBuffer ProcessGroup::receive(int64_t from, const CollectiveFingerprint& fingerprint) {
  const std::string expected = to_string(fingerprint);
  ProcessBackend::Lock lock(backend_.mutex_);
  std::deque<Frame>& box = backend_.mailboxes_[{id_, Frame::Kind::point_to_point, ranks_[from]}];
  backend_.wait(lock, {.what = fmt::format("receive {} from rank {} in {}", expected, ranks_[from], name_),
                       .group_id = id_,
                       .sequence = ProcessBackend::WaitCondition::kNoSequence,
                       .ready = [&] { return !box.empty(); },
                       .missing = [&] { return std::vector<int64_t>{ranks_[from]}; },
                       .mismatch = {}});
  Frame frame = std::move(box.front());
  box.pop_front();
  if (frame.text != expected) {
    backend_.fail_locked(fmt::format("rank {} sent {}, but rank {} receives {}", ranks_[from], frame.text,
                                     backend_.rank(), expected),
                         ExitCode::retryable, backend_.rank());
    throw Fault(*backend_.failure_);
  }
  return std::move(frame.body);
}

}  // namespace teratron
