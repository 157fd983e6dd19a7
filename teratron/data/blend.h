// Blended datasets, sample for sample those of Megatron-LM.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/data/indexed/index_array.h"
#include "teratron/data/indexed/index_cache.h"

namespace teratron {

/// --data-path: prefixes, and their weights if given.
struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;
};

/// An odd number of items is a list of prefixes. An even number is (weight, prefix) pairs if items 0, 2, ...
/// are all numbers for Python's float(), else a list of prefixes. Throws UserError(config) for no items, and
/// if a number follows a non-number among items 0, 2, ...
Blend parse_data_path(std::span<const std::string> items);

/// Python's float(text); nothing where it raises ValueError.
std::optional<double> python_float(std::string_view text);

/// values / sum, with numpy's pairwise summation.
std::vector<double> normalize_weights(std::span<const double> values);

/// Samples to build from a dataset with `weight` for a blend of `num_samples`: ceil(ceil(num_samples x
/// weight) x (1 + surplus)). The surplus compensates rounding in the greedy fill.
int64_t samples_with_surplus(int64_t num_samples, double weight, double surplus);

/// Sample i of the blend is sample dataset_sample_index[i] of dataset dataset_index[i].
struct BlendIndex {
  IndexArray dataset_index;         // i16
  IndexArray dataset_sample_index;  // i64
  std::vector<int64_t> counts;      // samples of each dataset
  int64_t samples() const { return dataset_index.rows(); }
};

/// Sample i goes to the first dataset d with the largest weight[d] x max(i, 1) - count[d].
BlendIndex build_blending_indices(std::span<const double> weights, int64_t size,
                                  IndexProgress* progress = nullptr);
/// As build_blending_indices with weights size / total, without datasets that are exhausted, until all are.
BlendIndex build_exhaustive_blending_indices(std::span<const int64_t> sizes,
                                             IndexProgress* progress = nullptr);

/// These through a cache (cached_index()); `source`: the datasets, whose content does not matter.
BlendIndex cached_blending_indices(const IndexSource& source, const IndexCache& cache,
                                   std::span<const double> weights, int64_t size);
BlendIndex cached_exhaustive_blending_indices(const IndexSource& source, const IndexCache& cache,
                                              std::span<const int64_t> sizes);

/// A blend of datasets.
class BlendedDataset : public Dataset {
 public:
  using Parts = std::vector<std::shared_ptr<const Dataset>>;
  /// Throws UserError(config) if the index refers to a sample that a dataset does not have.
  BlendedDataset(Parts parts, BlendIndex index);

  int64_t size() const override { return index_.samples(); }
  /// UserError(data) if the index is damaged.
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

  const BlendIndex& index() const { return index_; }
  const Parts& parts() const { return parts_; }

 private:
  Parts parts_;
  BlendIndex index_;
};

}  // namespace teratron
