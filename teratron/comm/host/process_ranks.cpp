#include "teratron/comm/host/process_ranks.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/ranges.h>
#include <unistd.h>

#include "teratron/base/hash.h"
#include "teratron/base/words.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kAnswerTime{3};  // for a living rank to say where it is
constexpr std::chrono::seconds kAfterCause{2};  // that the rank that failed first gets to leave first

std::string own_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("pid {} on {}", getpid(), host.data());
}

}  // namespace

int64_t ProcessRanks::Ledger::add(const Call& call) {
  recent.push_back(call);
  if (recent.size() > kLength) recent.pop_front();
  return ++count;
}

std::string ProcessRanks::Ledger::text() const {
  std::string lines;
  for (const Call& call : recent) lines += to_string(call) + "\n";
  return lines;
}

ProcessRanks::ProcessRanks(std::unique_ptr<Wire> wire, std::chrono::milliseconds timeout)
    : rank_(wire->rank()), size_(wire->size()), timeout_(timeout), peers_(size_), wire_(std::move(wire)) {
  wire_->start(*this);
  const Frame hello{.kind = Frame::Kind::hello, .text = own_name()};
  for (int64_t r = 0; r < size_; ++r) {
    if (r != rank_) post(r, hello, {});
  }
}

ProcessRanks::~ProcessRanks() {
  Lock lock(mutex_);
  if (!finished_ && !failure_) {
    fail_locked(fmt::format("rank {} has left", rank_), ExitCode::retryable, rank_);
  }
  // Whoever watches the processes shall see the one first that is to blame.
  if (failure_ && cause_ != rank_) {
    changed_.wait_for(lock, kAfterCause, [&] { return peers_[cause_].lost; });
  }
  const bool failed = failure_.has_value();
  lock.unlock();
  wire_->close(failed);
}

void ProcessRanks::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

std::chrono::milliseconds ProcessRanks::timeout() const {
  const std::lock_guard lock(mutex_);
  return timeout_;
}

std::unique_ptr<ProcessMeeting> ProcessRanks::meeting(const std::vector<int64_t>& group) {
  TERATRON_ASSERT(std::find(group.begin(), group.end(), rank_) != group.end(),
                  "rank {} is not in the group it asks for", rank_);
  for (int64_t rank : group) TERATRON_ASSERT(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
  const std::lock_guard lock(mutex_);
  const int64_t index = meetings_asked_[group]++;
  const uint64_t channel = hash_text(fmt::format("{} {}", index, group_in_words(group)));
  groups_[channel] = group;
  return std::make_unique<ProcessMeeting>(*this, group, channel);
}

void ProcessRanks::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  for (int64_t r = 0; r < size_; ++r) {
    if (r != rank_) post(r, {.kind = Frame::Kind::goodbye}, {});
  }
}

void ProcessRanks::fail(const std::string& reason, ExitCode code) {
  const std::lock_guard lock(mutex_);
  fail_locked(reason, code, rank_);
}

void ProcessRanks::fail_locked(const std::string& reason, ExitCode code, int64_t cause) {
  if (failure_) return;
  failure_.emplace(reason.empty() ? "aborted" : reason, code);
  cause_ = cause;
  changed_.notify_all();
  // Also where another rank failed: whoever hears of this rank's end shall know the reason by then.
  const Frame failure{.kind = Frame::Kind::failure,
                      .channel = static_cast<uint64_t>(cause),
                      .number = static_cast<int64_t>(code),
                      .text = failure_->what()};
  for (int64_t r = 0; r < size_; ++r) {
    if (r != rank_) post(r, failure, {});
  }
}

void ProcessRanks::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Fault(*failure_);
}

std::optional<Fault> ProcessRanks::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ProcessRanks::post(int64_t to, const Frame& frame, ByteSpan body) {
  if (to == rank_) {
    return dispatch(to, {frame.kind, frame.channel, frame.number, frame.text, Block(body)});
  }
  wire_->send(to, encode_head(frame, body.size()), body);
}

void ProcessRanks::on_bytes(int64_t from, ByteSpan bytes) {
  try {
    peers_[from].reader.feed(bytes, [&](Frame frame) { dispatch(from, std::move(frame)); });
  } catch (const std::exception& error) {
    fail(error.what(), ExitCode::retryable);
  }
}

void ProcessRanks::on_lost(int64_t from) {
  const std::lock_guard lock(mutex_);
  peers_[from].lost = true;
  if (!peers_[from].ended) {
    fail_locked(fmt::format("{} has died: its connection was closed without a word", name_of_rank(from)),
                ExitCode::retryable, from);
  }
  changed_.notify_all();
}

void ProcessRanks::dispatch(int64_t from, Frame frame) {
  using Kind = Frame::Kind;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  switch (frame.kind) {
    case Kind::hello:
      peer.name = frame.text;
      break;
    case Kind::part:
    case Kind::message:
      mail_[{frame.channel, frame.kind, from}].push_back(std::move(frame));
      break;
    case Kind::question:
      return answer(from, frame);
    case Kind::answer:
      peer.answers[frame.channel] = std::move(frame);
      break;
    case Kind::failure:
      TERATRON_ASSERT(frame.channel < peers_.size(), "rank {} of {}", frame.channel, size_);
      fail_locked(frame.text, static_cast<ExitCode>(frame.number), static_cast<int64_t>(frame.channel));
      break;
    case Kind::goodbye:
      peer.ended = true;
      break;
  }
  changed_.notify_all();
}

void ProcessRanks::answer(int64_t to, const Frame& question) {
  const Ledger& ledger = ledgers_[question.channel];
  const Whereabouts where{.waits_in = waits_in_,
                          .last_number = ledger.count,
                          .last_call = ledger.recent.empty() ? "" : to_string(ledger.recent.back())};
  const std::string calls = ledger.text();
  post(to,
       {.kind = Frame::Kind::answer,
        .channel = question.channel,
        .number = ledger.count,
        .text = to_string(where)},
       std::as_bytes(std::span(calls)));
}

std::string ProcessRanks::name_of_rank(int64_t rank) const {
  const std::string& name = peers_[rank].name;
  return name.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, name);
}

/// Of this rank, or as the other has answered.
CallHistory ProcessRanks::history_of(int64_t rank, uint64_t channel) const {
  if (rank == rank_) {
    const auto own = ledgers_.find(channel);
    if (own == ledgers_.end()) return {.rank = rank};
    return {.rank = rank, .count = own->second.count, .calls = words(own->second.text(), '\n')};
  }
  const Frame& answer = peers_[rank].answers.at(channel);
  const ByteSpan lines = answer.body.bytes();
  const std::string_view text(reinterpret_cast<const char*>(lines.data()), lines.size());
  return {.rank = rank, .count = answer.number, .calls = words(text, '\n')};
}

/// What this rank and those of `ranks` that answer have called. The lock is released meanwhile, and others may ask, too.
ProcessRanks::Answers ProcessRanks::ask(Lock& lock, uint64_t channel, const std::vector<int64_t>& ranks) {
  for (int64_t r : ranks) {
    peers_[r].answers.erase(channel);
    post(r, {.kind = Frame::Kind::question, .channel = channel}, {});
  }
  const auto all_answered = [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int64_t r) { return peers_[r].answers.contains(channel) || peers_[r].lost; });
  };
  changed_.wait_for(lock, kAnswerTime, all_answered);
  Answers answers{.histories = {history_of(rank_, channel)}, .places = {}};
  for (int64_t r : ranks) {
    const auto answer = peers_[r].answers.find(channel);
    if (answer == peers_[r].answers.end()) continue;
    answers.histories.push_back(history_of(r, channel));
    answers.places[r] = answer->second.text;
  }
  std::sort(answers.histories.begin(), answers.histories.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return answers;
}

/// Where this rank and `ranks` differ in another group (in any, if there are several): on a GPU they go on from there, and
/// meet elsewhere no more.
std::string ProcessRanks::difference_elsewhere(Lock& lock, uint64_t channel,
                                               const std::vector<int64_t>& ranks) {
  for (const auto& [other, group] : std::map(groups_)) {
    std::vector<int64_t> shared = ranks;
    std::erase_if(shared, [&](int64_t r) { return std::find(group.begin(), group.end(), r) == group.end(); });
    if (other == channel || shared.empty()) continue;
    if (std::string found = first_difference(ask(lock, other, shared).histories); !found.empty())
      return found;
  }
  return "";
}

/// Asks the missing ranks where they are and says what came out. The lock is released meanwhile.
std::string ProcessRanks::overdue(Lock& lock, const Waiting& waiting) {
  const std::vector<int64_t> asked = waiting.missing();
  const Answers answers = ask(lock, waiting.channel, asked);
  if (const std::string found = first_difference(answers.histories); !found.empty()) return found;
  if (answers.places.size() == asked.size()) {
    if (const std::string found = difference_elsewhere(lock, waiting.channel, asked); !found.empty())
      return found;
  }
  std::vector<std::string> late;
  for (int64_t r : asked) {
    if (!answers.places.contains(r)) {
      late.push_back(name_of_rank(r) + " does not answer: it is stopped, or its machine is out of reach");
    }
  }
  for (const CallHistory& history : answers.histories) {
    if (history.rank != rank_ && !history.at(waiting.number)) {
      late.push_back(fmt::format("rank {} {}", history.rank, answers.places.at(history.rank)));
    }
  }
  const double seconds = std::chrono::duration<double>(timeout_).count();
  return fmt::format("{} timed out after {:g} s: {}", waiting.what, seconds,
                     late.empty() ? "all ranks are in it, so a device or the network is stuck"
                                  : fmt::format("{}", fmt::join(late, "; ")));
}

void ProcessRanks::wait(Lock& lock, const Waiting& waiting) {
  const auto deadline = Clock::now() + timeout_;
  waits_in_ = waiting.what;
  while (!waiting.ready() && !failure_) {
    std::vector<int64_t> ended = waiting.missing();
    std::erase_if(ended, [&](int64_t r) { return !peers_[r].ended; });
    if (!ended.empty()) {
      fail_locked(fmt::format("{} cannot complete: {} ended", waiting.what,
                              ranks_in_words(ended) + (ended.size() == 1 ? " has" : " have")),
                  ExitCode::retryable, rank_);
      break;
    }
    const bool in_time = changed_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    if (!in_time && !waiting.ready() && !failure_) {
      const std::string reason = overdue(lock, waiting);
      fail_locked(reason, ExitCode::retryable, rank_);
    }
  }
  waits_in_.clear();
  if (!waiting.ready()) throw Fault(*failure_);
}

}  // namespace teratron
