#include <algorithm>
#include <limits>
#include <utility>

#include "teratron/base/fault_point.h"
#include "teratron/comm/host/process_ranks.h"

namespace teratron {
namespace {

constexpr int64_t kNoCollective = std::numeric_limits<int64_t>::max();  // nobody gets there

}  // namespace

ProcessMeeting::ProcessMeeting(ProcessRanks& home, std::vector<int64_t> ranks, uint64_t channel)
    : home_(home),
      ranks_(std::move(ranks)),
      channel_(channel),
      rank_(std::find(ranks_.begin(), ranks_.end(), home.rank()) - ranks_.begin()) {}

int64_t ProcessMeeting::record(const Call& call) {
  const std::lock_guard lock(home_.mutex_);
  if (home_.failure_) throw Fault(*home_.failure_);
  return home_.ledgers_[channel_].add(call);
}

std::string ProcessMeeting::overdue(const std::string& what, std::optional<int64_t> number) {
  ProcessRanks::Lock lock(home_.mutex_);
  std::vector<int64_t> others = ranks_;
  std::erase(others, home_.rank());
  return home_.overdue(lock, {.what = what,
                              .channel = channel_,
                              .number = number.value_or(kNoCollective),
                              .ready = {},
                              .missing = [&] { return others; }});
}

std::string ProcessMeeting::in_words(const Call& call, int64_t number) const {
  return collective_in_words(to_string(call), number, ranks_);
}

void ProcessMeeting::post_parts(const std::string& text, std::span<const ByteSpan> parts) {
  TERATRON_ASSERT(parts.size() == ranks_.size());
  const Frame frame{.kind = Frame::Kind::part, .channel = channel_, .number = sequence_, .text = text};
  for (int64_t i = 0; i < size(); ++i) {
    if (i != rank_) home_.post(ranks_[i], frame, parts[i]);
  }
}

/// The next part of every other rank; by rank.
std::vector<Frame> ProcessMeeting::collect(const std::string& call) {
  ProcessRanks::Lock lock(home_.mutex_);
  std::vector<std::deque<Frame>*> boxes(size());
  for (int64_t i = 0; i < size(); ++i) boxes[i] = &home_.mail_[{channel_, Frame::Kind::part, ranks_[i]}];
  const auto missing = [&] {
    std::vector<int64_t> ranks;
    for (int64_t i = 0; i < size(); ++i) {
      if (i != rank_ && boxes[i]->empty()) ranks.push_back(ranks_[i]);
    }
    return ranks;
  };
  home_.wait(lock, {.what = collective_in_words(call, sequence_, ranks_),
                    .channel = channel_,
                    .number = sequence_,
                    .ready = [&] { return missing().empty(); },
                    .missing = missing});
  std::vector<Frame> frames(size());
  for (int64_t i = 0; i < size(); ++i) {
    if (i == rank_) continue;
    frames[i] = std::move(boxes[i]->front());
    boxes[i]->pop_front();
    TERATRON_ASSERT(frames[i].number == sequence_, "part {} of rank {} at {}", frames[i].number, ranks_[i],
                    sequence_);
  }
  return frames;
}

std::vector<Block> ProcessMeeting::meet(const Call& call, std::span<const ByteSpan> parts) {
  fault_point("comm.collective");
  sequence_ = record(call);
  call_ = to_string(call);
  post_parts(call_, parts);
  std::vector<Frame> frames = collect(call_);
  frames[rank_].text = call_;
  std::vector<std::string> calls;
  std::vector<Block> blocks;
  for (Frame& frame : frames) {
    calls.push_back(std::move(frame.text));
    blocks.push_back(std::move(frame.body));
  }
  if (const std::string differing = difference(ranks_, calls, sequence_); !differing.empty()) {
    home_.fail(differing, ExitCode::retryable);
    home_.check();
  }
  return blocks;
}

std::vector<Block> ProcessMeeting::meet_again(std::span<const ByteSpan> parts) {
  post_parts("", parts);
  std::vector<Block> blocks;
  for (Frame& frame : collect(call_)) blocks.push_back(std::move(frame.body));
  return blocks;
}

void ProcessMeeting::send(int64_t to, const Call& call, ByteSpan bytes) {
  home_.check();
  home_.post(ranks_[to], {.kind = Frame::Kind::message, .channel = channel_, .text = to_string(call)}, bytes);
}

Block ProcessMeeting::receive(int64_t from, const Call& call) {
  const std::string expected = to_string(call);
  ProcessRanks::Lock lock(home_.mutex_);
  std::deque<Frame>& box = home_.mail_[{channel_, Frame::Kind::message, ranks_[from]}];
  home_.wait(lock, {.what = fmt::format("receive {} from rank {} in {}", expected, ranks_[from],
                                        group_in_words(ranks_)),
                    .channel = channel_,
                    .number = kNoCollective,
                    .ready = [&] { return !box.empty(); },
                    .missing = [&] { return std::vector<int64_t>{ranks_[from]}; }});
  Frame frame = std::move(box.front());
  box.pop_front();
  if (frame.text != expected) {
    home_.fail_locked(fmt::format("rank {} sent {}, but rank {} receives {}", ranks_[from], frame.text,
                                  home_.rank(), expected),
                      ExitCode::retryable, home_.rank());
    throw Fault(*home_.failure_);
  }
  return std::move(frame.body);
}

}  // namespace teratron
