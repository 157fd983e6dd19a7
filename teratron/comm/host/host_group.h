// The least that host-side code (checkpoints, start-up checks) needs of the other ranks; no tensors, no
// torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teratron {

class Peers {
 public:
  virtual ~Peers() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Every rank's bytes, by rank. Blocks until all have called it; throws Fault when one fails or times out.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
};

/// A single process: the identity.
class NoPeers final : public Peers {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override { return {bytes}; }
};

}  // namespace teratron
