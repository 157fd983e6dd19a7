#include "teratron/comm/host/process_group.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "teratron/base/fault_point.h"

namespace teratron {
namespace {

constexpr int64_t kNoSequence = std::numeric_limits<int64_t>::max();  // of point-to-point operations

}  // namespace

ProcessGroup::ProcessGroup(ProcessBackend& backend, std::vector<int64_t> ranks, uint64_t id)
    : backend_(backend),
      ranks_(std::move(ranks)),
      id_(id),
      rank_(std::find(ranks_.begin(), ranks_.end(), backend.rank()) - ranks_.begin()) {}

int64_t ProcessGroup::record(const CollectiveFingerprint& fingerprint) {
  const std::lock_guard lock(backend_.mutex_);
  if (backend_.failure_) throw Fault(*backend_.failure_);
  return backend_.recorders_[id_].record(fingerprint);
}

std::string ProcessGroup::diagnose_timeout(const std::string& what, std::optional<int64_t> sequence) {
  ProcessBackend::Lock lock(backend_.mutex_);
  std::vector<int64_t> others = ranks_;
  std::erase(others, backend_.rank());
  return backend_.diagnose_timeout(lock, {.what = what,
                                          .group_id = id_,
                                          .sequence = sequence.value_or(kNoSequence),
                                          .ready = {},
                                          .missing = [&] { return others; }});
}

std::string ProcessGroup::describe(const CollectiveFingerprint& fingerprint, int64_t sequence) const {
  return describe_collective(to_string(fingerprint), sequence, ranks_);
}

void ProcessGroup::post_parts(const std::string& text, std::span<const ByteSpan> parts) {
  TERATRON_ASSERT(parts.size() == ranks_.size());
  const Frame frame{.kind = Frame::Kind::collective, .group_id = id_, .sequence = sequence_, .text = text};
  for (int64_t i = 0; i < size(); ++i) {
    if (i != rank_) backend_.post(ranks_[i], frame, parts[i]);
  }
}

/// The next part from every other rank, by rank.
std::vector<Frame> ProcessGroup::collect() {
  ProcessBackend::Lock lock(backend_.mutex_);
  std::vector<std::deque<Frame>*> boxes(size());
  for (int64_t i = 0; i < size(); ++i)
    boxes[i] = &backend_.mailboxes_[{id_, Frame::Kind::collective, ranks_[i]}];
  const auto missing = [&] {
    std::vector<int64_t> ranks;
    for (int64_t i = 0; i < size(); ++i) {
      if (i != rank_ && boxes[i]->empty()) ranks.push_back(ranks_[i]);
    }
    return ranks;
  };
  backend_.wait(lock, {.what = describe_collective(fingerprint_, sequence_, ranks_),
                       .group_id = id_,
                       .sequence = sequence_,
                       .ready = [&] { return missing().empty(); },
                       .missing = missing});
  std::vector<Frame> frames(size());
  for (int64_t i = 0; i < size(); ++i) {
    if (i == rank_) continue;
    frames[i] = std::move(boxes[i]->front());
    boxes[i]->pop_front();
    if (frames[i].sequence == sequence_) continue;
    backend_.fail_locked(fmt::format("malformed message: rank {} is at collective {} of {}, not {}",
                                     ranks_[i], frames[i].sequence, describe_group(ranks_), sequence_),
                         ExitCode::retryable, backend_.rank());
    throw Fault(*backend_.failure_);
  }
  return frames;
}

std::vector<ByteBuffer> ProcessGroup::all_to_all(const CollectiveFingerprint& fingerprint,
                                                 std::span<const ByteSpan> parts) {
  fault_point("comm.collective");
  sequence_ = record(fingerprint);
  fingerprint_ = to_string(fingerprint);
  post_parts(fingerprint_, parts);
  std::vector<Frame> frames = collect();
  frames[rank_].text = fingerprint_;
  std::vector<std::string> fingerprints;
  std::vector<ByteBuffer> buffers;
  for (Frame& frame : frames) {
    fingerprints.push_back(std::move(frame.text));
    buffers.push_back(std::move(frame.body));
  }
  if (const std::string mismatch = describe_mismatch(ranks_, fingerprints, sequence_); !mismatch.empty()) {
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
  backend_.wait(lock, {.what = fmt::format("receive {} from rank {} in {}", expected, ranks_[from],
                                           describe_group(ranks_)),
                       .group_id = id_,
                       .sequence = kNoSequence,
                       .ready = [&] { return !box.empty(); },
                       .missing = [&] { return std::vector<int64_t>{ranks_[from]}; }});
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
