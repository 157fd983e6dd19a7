// What host-side code (checkpoints, start-up checks) needs from the other ranks. No tensors, no torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teratron {

class HostGroup {
 public:
  virtual ~HostGroup() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Every rank's bytes, by rank. Blocks until all ranks have called it; throws Fault if one fails or times
  /// out.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
};

/// A group of one process.
class SingleHostGroup final : public HostGroup {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override { return {bytes}; }
};

}  // namespace teratron
