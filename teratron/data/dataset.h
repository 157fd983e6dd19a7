// Map-style dataset of training samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teratron {

/// One sequence of a decoder-only model. All vectors have sequence_length entries.
struct Sample {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  std::vector<int64_t> position_ids;
  std::vector<float> loss_mask;        // 0: the label is ignored
  std::vector<int32_t> segment_start;  // first position that each token attends to
};

/// A sequence of samples in a fixed order. Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual int64_t sequence_length() const = 0;
  /// Fills sample i, 0 <= i < size(). Throws UserError(data) for bad data.
  virtual void get(int64_t i, Sample& sample) const = 0;
  /// One line for the log.
  virtual std::string describe() const = 0;
};

}  // namespace teratron
