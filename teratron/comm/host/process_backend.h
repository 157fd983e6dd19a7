// A job of processes as seen by one rank: mailboxes, flight recorders, and the job's failure.
//
// All errors become a Fault on every rank of the job, naming ranks and collectives. A failed job stays
// failed:
//   - fingerprints of a collective differ (operation, dtype, shape);
//   - a rank does not arrive in time: it is queried for its status, which the Fault includes;
//   - a rank has died or exited: known immediately, since its connection closes;
//   - a rank fails for another reason: its peers throw a Fault with that reason and exit code.
#pragma once

#include <atomic>
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
#include "teratron/comm/host/flight_recorder.h"
#include "teratron/comm/host/frame.h"

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

 private:
  friend class ProcessGroup;
  using Lock = std::unique_lock<std::mutex>;

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
    std::map<uint64_t, Frame> replies;  // by group id: several threads may query
  };
  struct WaitCondition {
    std::string what;
    uint64_t group_id = 0;
    int64_t sequence = 0;
    std::function<bool()> ready;
    std::function<std::vector<int64_t>()> missing;  // global ranks
    std::function<std::string()> mismatch;          // among what has arrived; may be null
  };

  void on_bytes(int64_t from, ByteSpan bytes) override;
  void on_lost(int64_t from) override;
  void dispatch(int64_t from, Frame frame);
  void reply_status(int64_t to, const Frame& query);
  void post(int64_t to, const Frame& frame, ByteSpan body);
  void post_to_all(const Frame& frame);
  void wait(Lock& lock, const WaitCondition& condition);
  std::string diagnose_timeout(Lock& lock, const WaitCondition& condition);
  FlightTrace trace_of(int64_t rank, uint64_t group_id) const;
  struct QueryResult {
    std::vector<FlightTrace> traces;        // by rank, including this one
    std::map<int64_t, std::string> status;  // of the ranks that replied
  };
  QueryResult query(Lock& lock, uint64_t group_id, const std::vector<int64_t>& ranks);
  std::string mismatch_elsewhere(Lock& lock, uint64_t group_id, const std::vector<int64_t>& ranks);
  std::string describe_rank(int64_t rank) const;
  void fail_locked(const std::string& reason, ExitCode code, int64_t cause);

  const int64_t rank_, size_;
  std::atomic<std::chrono::milliseconds> timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::map<Mailbox, std::deque<Frame>> mailboxes_;
  std::map<uint64_t, FlightRecorder> recorders_;  // by group id
  std::map<std::vector<int64_t>, int64_t> groups_created_;
  std::map<uint64_t, std::vector<int64_t>> groups_;  // by group id
  std::string waiting_in_;
  std::optional<Fault> failure_;
  int64_t cause_ = -1;  // the rank that failed first
  bool finished_ = false;
  std::unique_ptr<Transport> transport_;
};

}  // namespace teratron
