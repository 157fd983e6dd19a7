// From the flags about data to the three datasets of a GPT run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/models/gpt/data/gpt_dataset.h"

namespace teratron {

struct GPTDataOptions {
  std::vector<std::string> data_path;  // one blend, cut by `split`
  std::string split = "969,30,1";
  /// One blend per split instead (--train-data-path...); may be empty for some of them.
  std::array<std::vector<std::string>, 3> split_data_path;
  bool mock_data = false;

  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  /// Samples wanted of train, valid and test. Absent: one epoch.
  std::array<std::optional<int64_t>, 3> samples = {0, 0, 0};

  GPTMaskOptions masks;  // with vocab_size, which mock data needs
  bool add_extra_token = true;
  bool drop_last_partial_validation = true;
  double surplus = 0.005;  // --mid-level-dataset-surplus
  std::string cache_path;  // "": indices are built in memory
};

/// The items of --data-path out of a file, with white space between. UserError(data) for a file that holds none.
std::vector<std::string> read_data_args(const std::string& path);
/// The items of train, valid and test out of a JSON file {"train": [...], "valid": [...], "test": [...]}; a text with
/// blanks stands for a list. UserError(data) for anything else.
std::array<std::vector<std::string>, 3> read_per_split_data_args(const std::string& path);

/// Null: the split has no share, no path or no data.
struct GPTDatasets {
  std::shared_ptr<const Dataset> train, valid, test;
};

/// Builds what Megatron-LM's builder builds:
///   one prefix                 one dataset, no blend (with a weight in data_path: a blend of one)
///   weights                    each dataset gets its share of the samples plus the surplus, greedy fill;
///                              needs a number of samples for each split that has a share
///   no weights, samples        each dataset is one epoch, weighted by its samples; greedy fill
///   no weights, no samples     one epoch of everything, exhaustive fill
/// A split with a share but no sequence is left out with a warning; train is then UserError(data).
/// Wrong options are UserError(config), wrong files UserError(data).
GPTDatasets build_gpt_datasets(const GPTDataOptions& options);

}  // namespace teratron
