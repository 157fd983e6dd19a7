#include <algorithm>
#include <filesystem>
#include <set>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"

namespace teratron {

namespace {

namespace fs = std::filesystem;

/// Prefixes of all .bin and .idx files in a folder, sorted.
std::vector<std::string> datasets_in(const std::string& folder) {
  std::set<std::string> prefixes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (entry.is_regular_file() && strip_dataset_suffix(path) != path)
      prefixes.insert(strip_dataset_suffix(path));
  }
  return {prefixes.begin(), prefixes.end()};
}

}  // namespace

int merge_command(std::span<const std::string> args) {
  std::vector<std::string> inputs;
  std::string output;
  if (!read_command({.name = "teratron merge",
                     .example = "teratron merge --input shards --output-prefix all",
                     .usage = "--input PREFIX... --output-prefix PREFIX",
                     .summary = "Concatenate indexed datasets.",
                     .fields = {bound_field("input", &inputs,
                                            "A folder (all its datasets, by name), or prefixes in order",
                                            {.required = true}),
                                bound_field("output_prefix", &output, "Output path without .bin and .idx",
                                            {.required = true})}},
                    args))
    return static_cast<int>(ExitCode::ok);
  if (inputs.size() == 1 && fs::is_directory(inputs[0])) inputs = datasets_in(inputs[0]);
  for (std::string& input : inputs) input = strip_dataset_suffix(input);
  if (inputs.empty()) {
    throw data_error(
        {.what = "the folder has no datasets", .where = "--input", .fix = "Name another folder"});
  }
  if (std::find(inputs.begin(), inputs.end(), output) != inputs.end()) {
    throw config_error({.what = "the output would replace one of the inputs",
                        .where = "--output-prefix",
                        .fix = "Use another path"});
  }
  IndexedDatasetBuilder builder(output, IndexedDataset(inputs[0]).dtype());
  for (const std::string& input : inputs) builder.add_dataset(IndexedDataset(input));
  builder.finalize();
  print("{}: {} datasets, {} documents, {} sequences, {} tokens", output, inputs.size(), builder.documents(),
        builder.sequences(), builder.tokens());
  return static_cast<int>(ExitCode::ok);
}

}  // namespace teratron
