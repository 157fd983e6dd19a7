// Map-style dataset of training samples.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "teratron/data/batch.h"

namespace teratron {

/// A sequence of samples in a fixed order. Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Fills the columns of sample i, 0 <= i < size(). Throws UserError(data) for bad data.
  virtual void get(int64_t i, const Sample& sample) const = 0;
  /// One line for the log.
  virtual std::string describe() const = 0;
  /// What the user should know of how the samples were made; empty: nothing.
  virtual std::string report() const { return {}; }
};

/// Null: the split has no share, no path or no sequences.
struct Datasets {
  std::shared_ptr<const Dataset> train, valid, test;
};
inline constexpr std::array<const char*, 3> kSplitNames = {"train", "valid", "test"};

}  // namespace teratron
