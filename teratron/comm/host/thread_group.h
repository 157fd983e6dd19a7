// Where rank threads of one process meet: the synchronisation under the thread communicator, without tensors.
//
// A Meeting belongs to one group. A collective has two phases: each rank comes with its call and its buffers
// and waits for the others (this wait can fail); then each does its part of the work on everybody's buffers,
// and none leaves before all have finished, so buffers need to live no longer than the call.
//
// What goes wrong ends in a Fault on every rank of the meeting, with the ranks and their calls by name:
//   - ranks come with different calls (the ledger: sequence, operation, dtype, shape);
//   - a rank does not come in time, or its thread has ended;
//   - all ranks wait for each other in different meetings (found within seconds, not after the time-out);
//   - somebody aborts. A meeting that failed once stays failed.
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
#include <span>
#include <string>
#include <vector>

#include "teratron/comm/host/call.h"

namespace teratron {

/// The memory that a rank brings to a collective.
struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;
};

class Rendezvous;

class Meeting {
 public:
  using Part = std::function<void(std::span<const Buffers>)>;

  Meeting(Rendezvous& home, std::vector<int64_t> ranks);

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  /// Meets all ranks, runs `part` on the buffers of all (by rank in the group), returns when all have done
  /// so.
  void collective(int64_t rank, Call call, Buffers mine, const Part& part);
  /// Copies `bytes` into the mailbox of `to`; never blocks.
  void send(int64_t from, int64_t to, const Call& call, std::span<const std::byte> bytes);
  /// Waits for the next message of `from` and copies it out; the message's call must equal `call`.
  void receive(int64_t from, int64_t to, const Call& call, std::span<std::byte> bytes);
  void abort(const std::string& reason);

 private:
  friend class Rendezvous;
  using Lock = std::unique_lock<std::mutex>;

  struct Place {  // one rank's
    Call call;    // current or last
    int64_t calls = 0;
    bool waiting = false;
  };
  struct Message {
    Call call;
    std::vector<std::byte> bytes;
  };
  struct Waiting {  // of the caller, in words and in ranks
    int64_t rank;
    std::string what;
    std::function<bool()> ready;
    std::function<std::vector<int64_t>()> missing;  // ranks in the group that are waited for
  };

  void wait(Lock& lock, const Waiting& waiting);
  void arrive(Lock& lock, int64_t rank, Call call, Buffers mine);
  void leave(Lock& lock, int64_t rank);
  void release_all();
  void fail(const std::string& reason);
  std::string mismatch() const;
  std::string where_they_are(const std::vector<int64_t>& missing) const;

  Rendezvous& home_;
  const std::vector<int64_t> ranks_;  // global
  std::condition_variable changed_;
  std::vector<Place> places_;
  std::vector<Buffers> buffers_;
  std::map<std::pair<int64_t, int64_t>, std::deque<Message>> mail_;  // (from, to)
  int64_t arrived_ = 0, opened_ = 0;  // ranks that came to the next collective; collectives that all came to
  int64_t left_ = 0, closed_ = 0;  // ranks that did their part of the open one; collectives that all finished
  std::string failure_;
};

/// All meetings of the rank threads of one job. One mutex guards all of it: it is held for moments only.
class Rendezvous {
 public:
  Rendezvous(int64_t ranks, std::chrono::milliseconds timeout);

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  /// The meeting of `group` (global ranks): the n-th that a rank asks for with this list is the n-th of the
  /// others.
  Meeting& meeting(int64_t rank, const std::vector<int64_t>& group);
  /// The thread of `rank` has ended; whoever still waits for it fails.
  void finish(int64_t rank);
  void abort(const std::string& reason);

 private:
  friend class Meeting;

  struct Rank {
    bool finished = false;
    std::optional<std::string> waits_in;  // what it waits in now, in words
    std::map<std::vector<int64_t>, size_t> meetings_asked;
  };

  bool all_wait() const;
  std::string who_waits() const;
  void fail_all(const std::string& reason);

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<std::vector<int64_t>, std::deque<Meeting>> meetings_;
  int64_t progress_ = 0;  // counts every release of a waiting rank
  std::string failure_;
};

}  // namespace teratron
