// The three datasets of a run as the data flags select them: splits and blends of indexed datasets, by the
// rules of Megatron-LM's builder. What a sample is, the family says.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/data/dataset.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/splits.h"

namespace teratron {

struct DataSources {
  std::vector<std::string> data_path = {};  // one blend, divided by `split`
  std::string split = "969,30,1";
  /// Instead, one blend per split (--train-data-path...); each may be empty.
  std::array<std::vector<std::string>, 3> split_data_path = {};
  bool mock_data = false;
  /// Requested samples of train, valid and test; 0: not built; nullopt: one epoch.
  std::array<std::optional<int64_t>, 3> samples = {0, 0, 0};
  double surplus = 0.005;  // --mid-level-dataset-surplus
  bool warm_up = false;    // reads each file once as it is opened, so that it is in the page cache
};

/// Items for --data-path from a file, separated by white space. UserError(data) for a file without items.
std::vector<std::string> read_data_args(const std::string& path);
/// Items of train, valid and test from a JSON file {"train": [...], "valid": [...], "test": [...]}; a string
/// of items separated by white space may replace a list. UserError(data) for anything else.
std::array<std::vector<std::string>, 3> read_per_split_data_args(const std::string& path);

/// Contradictions between the sources.
std::vector<Problem> source_problems(const DataSources& sources);

/// A split's share of one prefix; never empty.
struct DatasetPart {
  std::shared_ptr<const IndexedDataset> data;
  SequenceRange range;
  size_t split = 0;
  std::optional<int64_t> samples;  // requested; nullopt: one epoch
};

/// What --split divides.
enum class SplitUnit : uint8_t { sequences, documents };

struct DatasetFactory {
  SplitUnit unit = SplitUnit::sequences;
  std::function<std::shared_ptr<const Dataset>(const DatasetPart&)> make;
  std::function<std::shared_ptr<const Dataset>(size_t split, int64_t samples)> make_mock;
  IndexCache cache = {};  // of blends
};

/// The datasets of Megatron-LM's builder:
///   one prefix                 one dataset, no blend (with a weight in data_path: a blend of one)
///   weights                    each dataset has its share of the samples plus the surplus, greedy fill;
///                              needs a number of samples for each split with a share
///   no weights, samples        each dataset is one epoch, weighted by its samples; greedy fill
///   no weights, no samples     one epoch of everything, exhaustive fill
/// A split with a share but no sequences is skipped with a warning, for train UserError(data). Invalid
/// weights are UserError(config), invalid files UserError(data).
Datasets build_datasets(const DataSources& sources, const DatasetFactory& factory);

}  // namespace teratron
