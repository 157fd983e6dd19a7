// One rank's endpoint of one group of processes: messages of bytes, without tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "teratron/comm/host/process_backend.h"

namespace teratron {

/// Not thread-safe.
class ProcessGroup {
 public:
  ProcessGroup(ProcessBackend& backend, const std::vector<int64_t>& ranks, uint64_t id);

  int64_t rank() const { return rank_; }
  int64_t size() const { return ranks_.size(); }
  const RankList& ranks() const { return ranks_; }
  /// "group [0 2]"
  const std::string& name() const { return name_; }
  /// All ranks call it with the same fingerprint. Sends parts[r] to rank r (of the group) and returns what
  /// each rank sent to this one (nothing at its own index). The parts may be overwritten afterwards.
  std::vector<ByteBuffer> all_to_all(const CollectiveFingerprint& fingerprint,
                                     std::span<const ByteSpan> parts);
  /// A further phase of the same collective.
  std::vector<ByteBuffer> continue_all_to_all(std::span<const ByteSpan> parts);
  // Collectives of bytes along a tree (comm/ranks/tree.h), with the semantics of HostGroup and Communicator.
  std::vector<std::string> all_gather(const std::string& bytes);
  std::vector<std::string> gather(const std::string& bytes);
  std::string broadcast(const std::string& bytes);
  void barrier();
  /// Never buffers.
  void send(int64_t to, const CollectiveFingerprint& fingerprint, ByteSpan bytes);
  /// The next message of `from`; fingerprints must match.
  ByteBuffer receive(int64_t from, const CollectiveFingerprint& fingerprint);

  // For collectives that run elsewhere (on a GPU):
  /// Records a collective and returns its sequence number.
  int64_t record(const CollectiveFingerprint& fingerprint);
  /// Queries the other ranks and describes why `what` has not completed in time. Point-to-point operations
  /// have no sequence number.
  std::string diagnose_timeout(const std::string& what, std::optional<int64_t> sequence);
  /// "all_reduce(sum) fp32 [4, 2] (collective 7 of group [0 2])"
  std::string describe(const CollectiveFingerprint& fingerprint, int64_t sequence) const;

 private:
  class TreePeers;

  void begin(const CollectiveFingerprint& fingerprint);
  void post_parts(const std::string& text, std::span<const ByteSpan> parts);
  void post_part(int64_t to, const std::string& text, ByteSpan part);
  std::vector<Frame> collect();
  std::vector<Frame> take_from(const std::vector<int64_t>& members);
  std::string mismatch_with(const Frame& frame, int64_t from) const;

  ProcessBackend& backend_;
  const RankList ranks_;
  const std::string name_;
  const uint64_t id_;
  const int64_t rank_;
  int64_t sequence_ = 0;
  std::string fingerprint_;  // of the current collective
};

}  // namespace teratron
