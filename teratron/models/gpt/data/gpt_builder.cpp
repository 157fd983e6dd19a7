#include "teratron/models/gpt/data/gpt_builder.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/data/blend.h"

namespace teratron {

namespace {

/// Builds the splits of blends; opens each prefix once.
class SplitBuilder {
 public:
  explicit SplitBuilder(const GPTDataOptions& options) : options_(options) {}

  /// `range_of` returns the sequences of this split. Null if any dataset has none.
  using RangeOf = std::function<std::optional<SequenceRange>(const IndexedDataset&)>;
  std::shared_ptr<const Dataset> build(const Blend& blend, size_t split, const RangeOf& range_of);

 private:
  std::shared_ptr<const Dataset> build_one(const std::string& prefix, size_t split, const RangeOf& range_of,
                                           std::optional<int64_t> samples);
  std::shared_ptr<const Dataset> build_blend(const Blend& blend, size_t split, const RangeOf& range_of);
  std::shared_ptr<const IndexedDataset> open(const std::string& prefix);

  const GPTDataOptions& options_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
};

std::shared_ptr<const IndexedDataset> SplitBuilder::open(const std::string& prefix) {
  auto& dataset = opened_[prefix];
  if (dataset == nullptr) dataset = std::make_shared<IndexedDataset>(strip_dataset_suffix(prefix));
  return dataset;
}

std::shared_ptr<const Dataset> SplitBuilder::build_one(const std::string& prefix, size_t split,
                                                       const RangeOf& range_of,
                                                       std::optional<int64_t> samples) {
  const auto data = open(prefix);
  const auto range = range_of(*data);
  if (!range) return nullptr;
  if (range->size() == 0) {
    const std::string what =
        fmt::format("the {} split has none of the {} sequences", kSplitNames[split], data->sequences());
    if (split == 0)
      throw data_error({.what = what, .where = data->prefix(), .fix = "Add data or change --split"});
    warn("{}: {}; skipping it", printable(data->prefix()), what);
    return nullptr;
  }
  const GPTIndexOptions index{.sequence_length = options_.sequence_length,
                              .seed = options_.seed,
                              .samples = samples,
                              .add_extra_token = options_.add_extra_token,
                              .drop_last = split != 1 || options_.drop_last_partial_validation};
  try {
    return std::make_shared<GPTDataset>(data, cached_gpt_index(*data, *range, index, options_.cache_path),
                                        index, options_.masks);
  } catch (const UserError& error) {
    Problem problem = error.problems().front();
    if (!problem.where.empty()) throw;
    problem.where = printable(data->prefix(), 1000);
    problem.what = fmt::format("the {} split: {}", kSplitNames[split], problem.what);
    if (split != 0) problem.fix += "; --eval-iters 0 builds no valid and test split";
    throw UserError(error.exit_code(), {problem});
  }
}

std::shared_ptr<const Dataset> SplitBuilder::build_blend(const Blend& blend, size_t split,
                                                         const RangeOf& range_of) {
  const auto num_samples = options_.samples[split];
  std::vector<double> weights;
  if (blend.weights) weights = normalize_weights(*blend.weights);
  BlendedDataset::Parts parts;
  int64_t size = 0;
  for (size_t i = 0; i < blend.prefixes.size(); ++i) {
    std::optional<int64_t> samples;
    if (blend.weights) {
      if (!range_of(*open(blend.prefixes[i]))) return nullptr;
      if (!num_samples) {
        throw config_error(
            {.what = fmt::format("a blend with weights needs a number of {} samples", kSplitNames[split]),
             .where = "--data-path",
             .fix = "Remove the weights, or set the number of iterations or samples"});
      }
      samples = samples_with_surplus(*num_samples, weights[i], options_.surplus);
      size += samples_with_surplus(*num_samples, weights[i], 0);
    }
    auto part = build_one(blend.prefixes[i], split, range_of, samples);
    if (part == nullptr) return nullptr;
    parts.push_back(std::move(part));
  }
  if (!blend.weights) {
    std::vector<int64_t> sizes;
    for (const auto& part : parts) sizes.push_back(part->size());
    if (!num_samples)
      return std::make_shared<BlendedDataset>(std::move(parts), build_exhaustive_blending_indices(sizes));
    weights = normalize_weights(std::vector<double>(sizes.begin(), sizes.end()));
    for (const int64_t part : sizes) size += part;
    size = std::min(size, *num_samples);
  }
  return std::make_shared<BlendedDataset>(std::move(parts), build_blending_indices(weights, size));
}

std::shared_ptr<const Dataset> SplitBuilder::build(const Blend& blend, size_t split,
                                                   const RangeOf& range_of) {
  if (options_.samples[split] == 0) return nullptr;
  if (blend.prefixes.size() == 1 && !blend.weights) {
    return build_one(blend.prefixes[0], split, range_of, options_.samples[split]);
  }
  return build_blend(blend, split, range_of);
}

void check_weights(const Blend& blend) {
  for (const double weight : blend.weights.value_or(std::vector<double>())) {
    if (weight > 0 && std::isfinite(weight)) continue;
    throw config_error({.what = fmt::format("weight {} is not a positive number", weight),
                        .where = "--data-path",
                        .fix = "Remove datasets that should not be used"});
  }
}

Datasets build_mock(const GPTDataOptions& options) {
  std::array<std::shared_ptr<const Dataset>, 3> built;
  for (size_t split = 0; split < 3; ++split) {
    constexpr int64_t kEpoch = 100000;
    const int64_t samples = options.samples[split].value_or(kEpoch);
    if (samples == 0) continue;
    built[split] =
        std::make_shared<MockGPTDataset>(MockGPTDataset::Options{.samples = samples,
                                                                 .sequence_length = options.sequence_length,
                                                                 .vocab_size = options.masks.vocab_size,
                                                                 .seed = options.seed + split});
  }
  return {built[0], built[1], built[2]};
}

void check(const GPTDataOptions& options) {
  std::vector<Problem> problems;
  const bool per_split = std::any_of(options.split_data_path.begin(), options.split_data_path.end(),
                                     [](const auto& paths) { return !paths.empty(); });
  const int sources = (options.mock_data ? 1 : 0) + (options.data_path.empty() ? 0 : 1) + (per_split ? 1 : 0);
  if (sources != 1) {
    problems.push_back(
        {.what = sources == 0 ? "no data given" : "data given by more than one source",
         .where = "--data-path",
         .fix = "Use one of --data-path, --train-data-path (and valid, test) and --mock-data"});
  }
  if (options.sequence_length < 1) {
    problems.push_back({.what = fmt::format("{} is not a positive number", options.sequence_length),
                        .where = "--seq-length",
                        .fix = "Set the tokens per sample, for example 1024"});
  }
  if (options.mock_data && options.masks.vocab_size < 2) {
    problems.push_back({.what = "mock data needs a vocabulary size",
                        .where = "--vocab-size",
                        .fix = "Set the number of token ids, for example 50257"});
  }
  for (size_t split = 0; split < 3; ++split) {
    if (options.samples[split].value_or(0) < 0) {
      problems.push_back(
          {.what = fmt::format("{} {} samples are requested", *options.samples[split], kSplitNames[split]),
           .fix = "Request 0 or more"});
    }
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace

std::vector<std::string> read_data_args(const std::string& path) {
  std::vector<std::string> items = words_of(read_text(path, {.kind = ExitCode::data}));
  if (items.empty()) {
    throw data_error({.what = "contains no dataset",
                      .where = printable(path, 1000),
                      .fix = "Write the items for --data-path into it"});
  }
  return items;
}

std::array<std::vector<std::string>, 3> read_per_split_data_args(const std::string& path) {
  const nlohmann::json file = read_json(path, {.kind = ExitCode::data});
  const auto reject = [&](std::string what) {
    throw data_error({.what = std::move(what),
                      .where = printable(path, 1000),
                      .fix = "Write a list of strings for each of train, valid and test"});
  };
  std::array<std::vector<std::string>, 3> items;
  for (size_t split = 0; split < 3; ++split) {
    const auto found = file.is_object() ? file.find(kSplitNames[split]) : file.end();
    if (found == file.end()) reject(fmt::format("\"{}\" is missing", kSplitNames[split]));
    if (found->is_string()) {
      items[split] = words_of(found->get<std::string>());
    } else if (found->is_array() &&
               std::all_of(found->begin(), found->end(), [](const auto& item) { return item.is_string(); })) {
      items[split] = found->get<std::vector<std::string>>();
    } else if (!found->is_null()) {
      reject(fmt::format("\"{}\" is not a list of strings", kSplitNames[split]));
    }
  }
  return items;
}

Datasets build_gpt_datasets(const GPTDataOptions& options) {
  check(options);
  if (options.mock_data) return build_mock(options);
  std::array<std::shared_ptr<const Dataset>, 3> built;
  SplitBuilder builder(options);
  if (!options.data_path.empty()) {
    const Blend blend = parse_data_path(options.data_path);
    check_weights(blend);
    const auto shares = parse_split(options.split);
    for (size_t split = 0; split < 3; ++split) {
      built[split] = builder.build(blend, split, [&](const IndexedDataset& data) {
        return split_ranges(shares, data.sequences())[split];
      });
    }
    return {built[0], built[1], built[2]};
  }
  for (size_t split = 0; split < 3; ++split) {
    if (options.split_data_path[split].empty()) continue;
    Blend blend = parse_data_path(options.split_data_path[split]);
    check_weights(blend);
    if (blend.prefixes.size() == 1)
      blend.weights.reset();  // as in Megatron-LM, one prefix per split is never a blend
    built[split] =
        builder.build(blend, split, [](const IndexedDataset& data) -> std::optional<SequenceRange> {
          return SequenceRange{0, data.sequences()};
        });
  }
  return {built[0], built[1], built[2]};
}

}  // namespace teratron
