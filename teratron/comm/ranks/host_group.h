// What host-side code (checkpoints, start-up checks) needs from the other ranks. No tensors, no torch.
//
// Costs for n ranks, where processes communicate (comm/ranks/tree.h): broadcast_bytes and gather_bytes take n
// messages in all, log2(n) one after the other; all_gather_bytes twice that, and every rank holds all bytes:
// prefer the other two for what only rank 0 needs or knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// Messages between the ranks of a group.
class BytePeers {
 public:
  virtual ~BytePeers() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Does not wait for the receiver. `to` is another rank.
  virtual void send_bytes(int64_t to, const std::string& bytes) = 0;
  /// The next message of `from`, another rank. Blocks until it is there; throws Fault if the job fails or the
  /// message does not come in time.
  virtual std::string receive_bytes(int64_t from) = 0;
};

/// All ranks of a group issue the same of these collectives in the same order. Each throws Fault if a rank
/// that it waits for fails or does not come in time.
class HostGroup : public BytePeers {
 public:
  /// Every rank's bytes, by rank. Blocks until all ranks have called it.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
  /// On rank 0 every rank's bytes, by rank; on others nothing. They may leave before rank 0 has all.
  virtual std::vector<std::string> gather_bytes(const std::string& bytes) = 0;
  /// Rank 0's bytes, on all ranks. Rank 0 may leave before others have them.
  virtual std::string broadcast_bytes(const std::string& bytes) = 0;
};

/// A group of one process.
class SingleHostGroup final : public HostGroup {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  void send_bytes(int64_t to, const std::string& /*bytes*/) override {
    TERATRON_ASSERT(false, "a message to rank {} of 1", to);
  }
  std::string receive_bytes(int64_t from) override {
    TERATRON_ASSERT(false, "a message from rank {} of 1", from);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override { return {bytes}; }
  std::vector<std::string> gather_bytes(const std::string& bytes) override { return {bytes}; }
  std::string broadcast_bytes(const std::string& bytes) override { return bytes; }
};

}  // namespace teratron
