// The processes of a job as one of them sees them: mailboxes, the ledger of collectives, and what went wrong.
//
// Ranks meet in groups (ProcessMeeting). What goes wrong ends in a Fault on every rank of the job, with the
// ranks and their calls by name:
//   - ranks come to a collective with different calls (operation, element type, shape);
//   - a rank does not come in time: it is asked where it is, and the answer, or that there was none, is told;
//   - a rank has died or ended: known at once, since its connection closes;
//   - a rank fails for a reason of its own: its peers throw a Fault with this reason and its exit code.
// A job that failed once stays failed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/host/call.h"
#include "teratron/comm/host/frame.h"

namespace teratron {

class ProcessMeeting;

class ProcessRanks final : private WireReceiver {
 public:
  ProcessRanks(std::unique_ptr<Wire> wire, std::chrono::milliseconds timeout);
  /// A rank that is left without finish() or fail() has failed.
  ~ProcessRanks() override;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;
  /// The meeting of `group` (global ranks, with this one): the n-th that a rank asks for with this list is
  /// the n-th of the others. This object must outlive it.
  std::unique_ptr<ProcessMeeting> meeting(const std::vector<int64_t>& group);
  /// This rank's part has ended in order.
  void finish();
  /// This rank cannot go on: the job fails, on all ranks, with this reason.
  void fail(const std::string& reason, ExitCode code);
  /// Throws Fault if the job has failed.
  void check() const;
  /// The Fault that check() would throw; nothing while all is well.
  std::optional<Fault> failure() const;

 private:
  friend class ProcessMeeting;
  using Lock = std::unique_lock<std::mutex>;

  struct Mailbox {
    uint64_t channel;
    Frame::Kind kind;
    int64_t from;
    auto operator<=>(const Mailbox&) const = default;
  };
  struct Peer {
    FrameReader reader;  // of the wire's thread alone
    std::string name;    // "pid 4711 on host"
    bool ended = false;  // said goodbye
    bool lost = false;
    std::map<uint64_t, Frame> answers;  // by channel: several threads may ask
  };
  struct Ledger {  // of one channel
    int64_t count = 0;
    std::deque<Call> recent;  // the last ones, the newest at the back; in words only when somebody asks
    static constexpr size_t kLength = 1024;
    int64_t add(const Call& call);
    std::string text() const;  // a line each
  };
  /// What a rank waits for, in words and in ranks.
  struct Waiting {
    std::string what;
    uint64_t channel = 0;
    int64_t number = 0;
    std::function<bool()> ready;
    std::function<std::vector<int64_t>()> missing;  // global ranks
  };

  void on_bytes(int64_t from, ByteSpan bytes) override;
  void on_lost(int64_t from) override;
  void dispatch(int64_t from, Frame frame);
  void answer(int64_t to, const Frame& question);
  void post(int64_t to, const Frame& frame, ByteSpan body);
  void wait(Lock& lock, const Waiting& waiting);
  std::string overdue(Lock& lock, const Waiting& waiting);
  CallHistory history_of(int64_t rank, uint64_t channel) const;
  struct Answers {
    std::vector<CallHistory> histories;     // with this rank's own; by rank
    std::map<int64_t, std::string> places;  // where the others are, of those that answer
  };
  Answers ask(Lock& lock, uint64_t channel, const std::vector<int64_t>& ranks);
  std::string difference_elsewhere(Lock& lock, uint64_t channel, const std::vector<int64_t>& ranks);
  std::string name_of_rank(int64_t rank) const;
  void fail_locked(const std::string& reason, ExitCode code, int64_t cause);

  const int64_t rank_, size_;
  std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::map<Mailbox, std::deque<Frame>> mail_;
  std::map<uint64_t, Ledger> ledgers_;
  std::map<std::vector<int64_t>, int64_t> meetings_asked_;
  std::map<uint64_t, std::vector<int64_t>> groups_;  // of the channels
  std::string waits_in_;
  std::optional<Fault> failure_;
  int64_t cause_ = -1;  // the rank that failed first
  bool finished_ = false;
  std::unique_ptr<Wire> wire_;
};

/// One rank's end of one group. Used by one thread at a time.
class ProcessMeeting {
 public:
  ProcessMeeting(ProcessRanks& home, std::vector<int64_t> ranks, uint64_t channel);

  int64_t rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  ProcessRanks& home() const { return home_; }
  /// All ranks come with the same call; parts[r] goes to rank r (of the group), and what each sent to this
  /// rank is returned (nothing at its own place). The caller may write into its parts afterwards.
  std::vector<Block> meet(const Call& call, std::span<const ByteSpan> parts);
  /// The same once more as a later phase of the collective that meet() began.
  std::vector<Block> meet_again(std::span<const ByteSpan> parts);
  /// A message; never blocks.
  void send(int64_t to, const Call& call, ByteSpan bytes);
  /// The next message of `from`, which must have been sent with the same call.
  Block receive(int64_t from, const Call& call);

  /// For what runs elsewhere (on a GPU): enters a collective into the ledger and returns its number...
  int64_t record(const Call& call);
  /// ...and says, in words, who is to blame when `what` does not complete in time. A message has no number.
  std::string overdue(const std::string& what, std::optional<int64_t> number);
  /// "all_reduce(sum) Float [4, 2] (collective 7 of group [0 2])"
  std::string in_words(const Call& call, int64_t number) const;

 private:
  void post_parts(const std::string& text, std::span<const ByteSpan> parts);
  std::vector<Frame> collect(const std::string& call);

  ProcessRanks& home_;
  const std::vector<int64_t> ranks_;  // global
  const uint64_t channel_;
  const int64_t rank_;
  int64_t sequence_ = 0;
  std::string call_;  // the current one
};

}  // namespace teratron
