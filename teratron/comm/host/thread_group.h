// Synchronisation of rank threads in one process, without tensors. ThreadCommunicator is built on it.
//
// A collective has two phases. Each rank arrives with its fingerprint and buffers and waits for the others,
// which may fail; then each rank does its part of the work on the buffers of all ranks. No rank leaves before
// all have finished, so buffers need not outlive the call.
//
// All errors become a Fault on every rank of the group, naming ranks and collectives. A failed group stays
// failed:
//   - fingerprints differ (sequence number, operation, dtype, shape);
//   - a rank does not arrive in time, or its thread has ended;
//   - deadlock: all ranks wait in different groups (detected within seconds, not at the timeout);
//   - abort().
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

#include "teratron/comm/ranks/flight_recorder.h"

namespace teratron {

/// The memory that a rank contributes to a collective.
struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;
};

class ThreadBackend;

class ThreadGroup {
 public:
  using LocalWork = std::function<void(std::span<const Buffers>)>;

  ThreadGroup(ThreadBackend& backend, std::vector<int64_t> ranks);

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  /// Waits for all ranks, runs `work` on the buffers of all (by rank in the group), returns when all have
  /// finished.
  void collective(int64_t rank, CollectiveFingerprint fingerprint, Buffers buffers, const LocalWork& work);
  /// Copies `bytes` into the mailbox of `to`; never blocks.
  void send(int64_t from, int64_t to, const CollectiveFingerprint& fingerprint,
            std::span<const std::byte> bytes);
  /// Waits for the next message of `from` and copies it out; fingerprints must match.
  void receive(int64_t from, int64_t to, const CollectiveFingerprint& fingerprint,
               std::span<std::byte> bytes);
  void abort(const std::string& reason);

 private:
  friend class ThreadBackend;
  using Lock = std::unique_lock<std::mutex>;

  struct Member {  // one rank's state
    CollectiveFingerprint last;
    int64_t sequence = 0;
    bool waiting = false;
  };
  struct Message {
    CollectiveFingerprint fingerprint;
    std::vector<std::byte> bytes;
  };
  struct WaitCondition {
    int64_t rank;  // the waiting one
    std::string what;
    std::function<bool()> ready;
    std::function<std::vector<int64_t>()> missing;  // ranks in the group that are waited for
  };

  void wait(Lock& lock, const WaitCondition& condition);
  void arrive(Lock& lock, int64_t rank, CollectiveFingerprint fingerprint, Buffers buffers);
  void leave(Lock& lock, int64_t rank);
  void wake_all();
  void fail(const std::string& reason);
  std::string mismatch() const;
  std::string describe_status(const std::vector<int64_t>& members) const;

  ThreadBackend& backend_;
  const std::vector<int64_t> ranks_;  // global
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::vector<Buffers> buffers_;
  std::map<std::pair<int64_t, int64_t>, std::deque<Message>> mailboxes_;  // (from, to)
  int64_t arrived_ = 0, started_ = 0;  // ranks that arrived at the next collective; collectives started
  int64_t left_ = 0, finished_ = 0;    // ranks that finished the current collective; collectives finished
  std::string failure_;
};

/// The rank threads of one job and their groups. One mutex guards all state and is never held for long.
class ThreadBackend {
 public:
  ThreadBackend(int64_t ranks, std::chrono::milliseconds timeout);

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  /// The group of these global ranks. The n-th call of one rank with the same list returns the same group as
  /// the n-th call of the others.
  ThreadGroup& group(int64_t rank, const std::vector<int64_t>& ranks);
  /// The thread of `rank` has ended: ranks that wait for it fail.
  void finish(int64_t rank);
  void abort(const std::string& reason);

 private:
  friend class ThreadGroup;

  struct Rank {
    bool finished = false;
    std::optional<std::string> waiting_in;
    std::map<std::vector<int64_t>, size_t> groups_created;
  };

  bool all_waiting() const;
  std::string describe_waiting() const;
  void fail_all(const std::string& reason);

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<std::vector<int64_t>, std::deque<ThreadGroup>> groups_;
  int64_t progress_ = 0;  // counts wake-ups of waiting ranks
  std::string failure_;
};

}  // namespace teratron
