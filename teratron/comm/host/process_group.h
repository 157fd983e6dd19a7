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
  ProcessGroup(ProcessBackend& backend, std::vector<int64_t> ranks, uint64_t id);

  int64_t rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  /// All ranks call it with the same fingerprint. Sends parts[r] to rank r (of the group) and returns what
  /// each rank sent to this one (nothing at its own index). The parts may be overwritten afterwards.
  std::vector<ByteBuffer> all_to_all(const CollectiveFingerprint& fingerprint,
                                     std::span<const ByteSpan> parts);
  /// A further phase of the same collective.
  std::vector<ByteBuffer> continue_all_to_all(std::span<const ByteSpan> parts);
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
  /// "all_reduce(sum) Float [4, 2] (collective 7 of group [0 2])"
  std::string describe(const CollectiveFingerprint& fingerprint, int64_t sequence) const;

 private:
  void post_parts(const std::string& text, std::span<const ByteSpan> parts);
  std::vector<Frame> collect();

  ProcessBackend& backend_;
  const std::vector<int64_t> ranks_;  // global
  const uint64_t id_;
  const int64_t rank_;
  int64_t sequence_ = 0;
  std::string fingerprint_;  // of the current collective
};

}  // namespace teratron
