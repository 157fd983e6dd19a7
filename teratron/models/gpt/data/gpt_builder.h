// The three datasets of a GPT run, built from the data flags.
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
  std::vector<std::string> data_path;  // one blend, divided by `split`
  std::string split = "969,30,1";
  /// Instead, one blend per split (--train-data-path...); each may be empty.
  std::array<std::vector<std::string>, 3> split_data_path;
  bool mock_data = false;

  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  /// Requested samples of train, valid and test; 0: not built; nullopt: one epoch.
  std::array<std::optional<int64_t>, 3> samples = {0, 0, 0};

  GPTMaskOptions masks;  // vocab_size is required for mock data
  bool add_extra_token = true;
  bool drop_last_partial_validation = true;
  double surplus = 0.005;  // --mid-level-dataset-surplus
  std::string cache_path;  // "": build indices in memory
};

/// Items for --data-path from a file, separated by white space. UserError(data) for a file without items.
std::vector<std::string> read_data_args(const std::string& path);
/// Items of train, valid and test from a JSON file {"train": [...], "valid": [...], "test": [...]}; a string
/// of items separated by white space may replace a list. UserError(data) for anything else.
std::array<std::vector<std::string>, 3> read_per_split_data_args(const std::string& path);

/// The datasets of Megatron-LM's builder:
///   one prefix                 one dataset, no blend (with a weight in data_path: a blend of one)
///   weights                    each dataset has its share of the samples plus the surplus, greedy fill;
///                              needs a number of samples for each split with a share
///   no weights, samples        each dataset is one epoch, weighted by its samples; greedy fill
///   no weights, no samples     one epoch of everything, exhaustive fill
/// A split with a share but no sequences is skipped with a warning, for train UserError(data). Invalid
/// options are UserError(config), invalid files UserError(data).
Datasets build_gpt_datasets(const GPTDataOptions& options);

}  // namespace teratron
