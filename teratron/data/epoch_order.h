// The order of the samples of a training that reads the same items in every epoch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace teratron {

/// Items 0, ..., count - 1 of each epoch one after the other, as many as there are samples. Permutations are
/// made when a sample is asked for; those of two epochs are kept, however long the training is.
class EpochOrder {
 public:
  struct Options {
    int64_t count = 0;
    std::optional<int64_t> samples = {};   // nullopt: one epoch
    std::optional<uint64_t> shuffle = {};  // epoch e is torch_randperm(count, shuffle + e); nullopt: in order
  };
  explicit EpochOrder(const Options& options);

  int64_t size() const { return size_; }
  /// The item of sample i, 0 <= i < size(). Thread-safe.
  int64_t at(int64_t i) const;

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<int64_t> order;
  };
  std::shared_ptr<const Epoch> epoch(int64_t number) const;

  Options options_;
  int64_t size_;
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> kept_;  // threads that read ahead cross into the next
};

}  // namespace teratron
