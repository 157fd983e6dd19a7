// Mixing datasets: Megatron-LM's blends, sample for sample.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/data/indexed/npy.h"

namespace teratron {

/// What --data-path says: prefixes, and weights when it gave them.
struct BlendPaths {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;
};

/// An odd number of items is a list of prefixes. An even number is (weight, prefix) pairs if every weight is
/// a number as Python's float() reads them, else a list of prefixes, but only if no number follows the first
/// item that is none. Throws UserError(config) for a mixture, for weights that are not above 0 and for no
/// item.
BlendPaths parse_data_path(std::span<const std::string> items);

/// Python's float(text); nothing if it raises ValueError.
std::optional<double> python_float(std::string_view text);

/// values / sum, where the sum is numpy's pairwise one.
std::vector<double> normalize_weights(std::span<const double> values);

/// Samples to build of a dataset with `weight`, for `wanted` samples of the blend: ceil(ceil(wanted x weight)
/// x (1 + surplus)). The surplus makes up for rounding in the greedy fill.
int64_t samples_with_surplus(int64_t wanted, double weight, double surplus);

/// Sample i of the blend is sample `sample[i]` of dataset `dataset[i]`.
struct BlendIndex {
  std::vector<int16_t> dataset;
  std::vector<int64_t> sample;
};

/// Sample i goes to the first dataset d with the largest weight[d] x max(i, 1) - count[d].
BlendIndex greedy_blend(std::span<const double> weights, int64_t size);
/// As greedy_blend with weights size / total; a dataset leaves when it is used up, so that all are used up.
BlendIndex exhaustive_blend(std::span<const int64_t> sizes);

/// A dataset made of others.
class BlendedDataset : public Dataset {
 public:
  using Parts = std::vector<std::shared_ptr<const Dataset>>;
  /// Throws UserError(config) when the index asks a dataset for a sample that it does not have.
  BlendedDataset(Parts parts, BlendIndex index);

  int64_t size() const override { return static_cast<int64_t>(index_.dataset.size()); }
  int64_t sequence_length() const override { return parts_.front()->sequence_length(); }
  void get(int64_t i, Sample& sample) const override;
  std::string describe() const override;

  const BlendIndex& index() const { return index_; }
  const Parts& parts() const { return parts_; }

 private:
  Parts parts_;
  BlendIndex index_;
};

}  // namespace teratron
