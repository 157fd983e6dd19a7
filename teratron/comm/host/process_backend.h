// A job of processes as seen by one rank: mailboxes, flight recorders, and the job's failure.
//
// All errors become a Fault on every rank of the job, naming ranks and collectives. A failed job stays
// failed:
//   - fingerprints of a collective differ (operation, dtype, shape);
//   - a rank does not arrive in time: it is queried for its status, which the Fault includes;
//   - a rank has died or exited: its neighbours in the tree of ranks (ranks/tree.h) know immediately, as its
//     connections close;
//   - a rank fails for another reason: its peers throw a Fault with that reason and exit code.
//
// A failure travels along the tree. Each rank also tells the neighbours of its neighbours, one of which may
// be stopped.
//
// Time-outs (timeout_diagnosis.h). The lowest waiting rank diagnoses: it queries the ranks it waits for, and
// the ranks those wait for. If one does not answer, it also queries the ranks below it in the tree of the
// group. A rank with a waiting ancestor gives it 8 s first, and longer if it says that it diagnoses. If the
// ancestor is silent, the rank queries at most 16 peers itself. Total: n queries by one rank, O(1) by each
// other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/host/frame.h"
#include "teratron/comm/host/host_traffic.h"
#include "teratron/comm/host/status_reply.h"
#include "teratron/comm/ranks/flight_recorder.h"
#include "teratron/comm/ranks/rank_list.h"

namespace teratron {

class ProcessGroup;

class ProcessBackend final : private TransportReceiver {
 public:
  ProcessBackend(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout);
  /// Without finish() or fail() before, this rank has failed.
  ~ProcessBackend() override;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// The group of these global ranks, which include this one. The n-th call with the same list connects to
  /// the n-th call of the others. Must not outlive this object.
  std::unique_ptr<ProcessGroup> group(const std::vector<int64_t>& ranks);
  /// This rank has completed successfully.
  void finish();
  /// Fails the job, on all ranks.
  void fail(const std::string& reason, ExitCode code);
  /// Throws Fault if the job has failed.
  void check() const;
  /// The Fault that check() would throw.
  std::optional<Fault> failure() const;
  /// What was sent so far.
  HostTraffic traffic() const;

 private:
  friend class ProcessGroup;
  friend class TimeoutDiagnosis;
  using Lock = std::unique_lock<std::mutex>;
  using Replies = std::map<int64_t, StatusReply>;  // by rank

  struct Mailbox {
    uint64_t group_id;
    Frame::Kind kind;
    int64_t from;
    auto operator<=>(const Mailbox&) const = default;
  };
  struct Peer {
    FrameReader reader;  // used by the transport's thread only
    std::string name;    // "pid 4711 on host"
    bool finished = false;
    bool lost = false;
    std::map<uint64_t, StatusReply> replies;  // by group id: several threads may query
  };
  struct WaitCondition {
    static constexpr int64_t kNoSequence = std::numeric_limits<int64_t>::max();  // point-to-point
    std::string what;
    uint64_t group_id = 0;
    int64_t sequence = 0;
    std::function<bool()> ready;
    std::function<std::vector<int64_t>()> missing;  // global ranks
    std::function<std::string()> mismatch;          // among what has arrived; may be null
  };

  void on_bytes(int64_t from, ByteSpan bytes) override;
  void on_lost(int64_t from) override;
  void on_failure(const Fault& fault) override;
  void dispatch(int64_t from, Frame frame);
  void reply_status(int64_t to, const Frame& query);
  void greet(int64_t to);
  void send(int64_t to, const Frame& frame, ByteSpan body);
  void post(int64_t to, const Frame& frame, ByteSpan body);
  void post_to(const std::set<int64_t>& ranks, const Frame& frame);
  std::set<int64_t> connected() const;
  void add_near(int64_t rank, int64_t distance, std::set<int64_t>& ranks) const;
  void fail_if_ended(const WaitCondition& condition);
  void wait(Lock& lock, const WaitCondition& condition);
  StatusReply own_status(uint64_t group_id, int64_t calls) const;
  Replies query(Lock& lock, uint64_t group_id, const std::vector<int64_t>& ranks, int64_t calls);
  std::string describe_rank(int64_t rank) const;
  void fail_locked(const std::string& reason, ExitCode code, int64_t cause);

  const int64_t rank_, size_;
  std::atomic<std::chrono::milliseconds> timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Peer> peers_;  // those that this rank has heard of
  std::map<Mailbox, std::deque<Frame>> mailboxes_;
  std::map<uint64_t, FlightRecorder> recorders_;  // by group id
  std::map<uint64_t, int64_t> groups_created_;    // by hash of the list of ranks
  std::map<uint64_t, RankList> groups_;           // by group id
  std::vector<const WaitCondition*> waiting_;     // by threads of this rank
  std::multiset<uint64_t> diagnosing_;            // group ids of TimeoutDiagnosis objects
  int64_t departures_ = 0;                        // ranks that have finished
  std::optional<Fault> failure_;
  int64_t cause_ = -1;  // the rank that failed first
  bool finished_ = false;
  mutable std::mutex traffic_mutex_;  // guards the following; never held for long
  std::set<int64_t> greeted_;         // ranks that something was sent to
  HostTraffic traffic_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace teratron
