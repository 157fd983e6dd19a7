// Records the collectives that a rank issues, and compares the records of several ranks to find where they
// diverge.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace teratron {

/// What all ranks of a group must agree on: the operation and its tensor.
struct CollectiveFingerprint {
  std::string operation;  // "all_reduce(sum)"
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  bool operator==(const CollectiveFingerprint&) const = default;
};

/// "all_reduce(sum) fp32 [4, 2]". Injective.
std::string to_string(const CollectiveFingerprint& fingerprint);

/// "group [0 2]"; of more than 8 ranks "group [0-63]", "group [0 8 16 24 32 40 48 56 ... of 128 ranks]"
std::string describe_group(std::span<const int64_t> ranks);
/// "ranks 0, 2"; of more than 8 ranks "ranks 0-31, 40"
std::string describe_ranks(std::span<const int64_t> ranks);
/// "all_reduce(sum) fp32 [4, 2] (collective 7 of group [0 2])"
std::string describe_collective(const std::string& fingerprint, int64_t sequence, const std::string& group);

/// Groups ranks by text, in order of first appearance; texts[i] belongs to ranks[i].
std::vector<std::pair<std::string, std::vector<int64_t>>> group_by_text(std::span<const int64_t> ranks,
                                                                        std::span<const std::string> texts);

/// Names the ranks and their fingerprints at one sequence number; "" if all are equal.
std::string describe_mismatch(const std::string& group, std::span<const int64_t> ranks,
                              std::span<const std::string> fingerprints, int64_t sequence);

/// The last collectives of one rank in one group; the newest has sequence number `count`.
struct FlightTrace {
  int64_t rank = 0;
  int64_t count = 0;
  std::vector<std::string> fingerprints = {};
  /// Null if no longer, or not yet, recorded.
  const std::string* at(int64_t sequence) const;
};
/// The first sequence number at which traces differ.
std::optional<int64_t> first_difference(std::span<const FlightTrace> traces);
/// describe_mismatch() of it.
std::string first_mismatch(std::span<const FlightTrace> traces);

/// Ring buffer of one rank's collectives in one group. Formats them only when asked: recording must be cheap.
class FlightRecorder {
 public:
  /// Returns the sequence number, from 1.
  int64_t record(const CollectiveFingerprint& fingerprint);
  int64_t count() const { return count_; }
  /// nullopt if no longer, or not yet, recorded.
  std::optional<std::string> at(int64_t sequence) const;
  std::string last() const { return entries_.empty() ? "" : to_string(entries_.back()); }
  /// At most that many of the newest fingerprints, oldest first.
  std::vector<std::string> newest(int64_t calls) const;

 private:
  int64_t count_ = 0;
  std::deque<CollectiveFingerprint> entries_;
};

/// What a rank is doing, as seen from a group that waits for it.
struct RankStatus {
  std::string waiting_in;     // "": computing
  int64_t last_sequence = 0;  // of its last collective in this group; 0: none
  std::string last_collective;
};
std::string to_string(const RankStatus& status);

}  // namespace teratron
