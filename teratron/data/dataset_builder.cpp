#include "teratron/data/dataset_builder.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/data/blend.h"

namespace teratron {

namespace {

int64_t units(const IndexedDataset& data, SplitUnit unit) {
  return unit == SplitUnit::sequences ? data.sequences() : data.documents();
}

/// Builds the splits of blends; opens each prefix once.
class SplitBuilder {
 public:
  SplitBuilder(const DataSources& sources, const DatasetFactory& factory)
      : sources_(sources), factory_(factory) {}

  /// `range_of` returns the units of this split. Null if any dataset has none.
  using RangeOf = std::function<std::optional<SequenceRange>(const IndexedDataset&)>;
  std::shared_ptr<const Dataset> build(const Blend& blend, size_t split, const RangeOf& range_of);

 private:
  std::shared_ptr<const Dataset> build_one(const std::string& prefix, size_t split, const RangeOf& range_of,
                                           std::optional<int64_t> samples);
  std::shared_ptr<const Dataset> build_blend(const Blend& blend, size_t split, const RangeOf& range_of);
  std::shared_ptr<const IndexedDataset> open(const std::string& prefix);

  const DataSources& sources_;
  const DatasetFactory& factory_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
};

std::shared_ptr<const IndexedDataset> SplitBuilder::open(const std::string& prefix) {
  auto& dataset = opened_[prefix];
  if (dataset != nullptr) return dataset;
  dataset = std::make_shared<IndexedDataset>(strip_dataset_suffix(prefix));
  if (sources_.warm_up) {
    dataset->idx().warm_up();
    dataset->bin().warm_up();
  }
  return dataset;
}

std::shared_ptr<const Dataset> SplitBuilder::build_one(const std::string& prefix, size_t split,
                                                       const RangeOf& range_of,
                                                       std::optional<int64_t> samples) {
  const auto data = open(prefix);
  const auto range = range_of(*data);
  if (!range) return nullptr;
  if (range->size() == 0) {
    const int64_t count = units(*data, factory_.unit);
    if (count == 0) {
      throw data_error({.what = "the dataset is empty",
                        .where = data->prefix(),
                        .fix = "Run `teratron preprocess` on files that hold documents"});
    }
    const std::string what = fmt::format("the {} split has none of the {} {}", kSplitNames[split], count,
                                         factory_.unit == SplitUnit::sequences ? "sequences" : "documents");
    if (split == 0)
      throw data_error({.what = what, .where = data->prefix(), .fix = "Add data or change --split"});
    warn("{}: {}; skipping it", printable(data->prefix()), what);
    return nullptr;
  }
  try {
    return factory_.make({data, *range, split, samples});
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
  const auto num_samples = sources_.samples[split];
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
      samples = samples_with_surplus(*num_samples, weights[i], sources_.surplus);
      size += samples_with_surplus(*num_samples, weights[i], 0);
    }
    auto part = build_one(blend.prefixes[i], split, range_of, samples);
    if (part == nullptr) return nullptr;
    parts.push_back(std::move(part));
  }
  const IndexSource source{
      .name = fmt::format("the blend of {} datasets ({} split)", parts.size(), kSplitNames[split]),
      .folder = open(blend.prefixes[0])->prefix() + "/cache"};
  if (!blend.weights) {
    std::vector<int64_t> sizes;
    for (const auto& part : parts) sizes.push_back(part->size());
    if (!num_samples) {
      return std::make_shared<BlendedDataset>(
          std::move(parts), cached_exhaustive_blending_indices(source, factory_.cache, sizes));
    }
    weights = normalize_weights(std::vector<double>(sizes.begin(), sizes.end()));
    for (const int64_t part : sizes) size += part;
    size = std::min(size, *num_samples);
  }
  return std::make_shared<BlendedDataset>(std::move(parts),
                                          cached_blending_indices(source, factory_.cache, weights, size));
}

std::shared_ptr<const Dataset> SplitBuilder::build(const Blend& blend, size_t split,
                                                   const RangeOf& range_of) {
  if (sources_.samples[split] == 0) return nullptr;
  if (blend.prefixes.size() == 1 && !blend.weights) {
    return build_one(blend.prefixes[0], split, range_of, sources_.samples[split]);
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

Datasets build_mock(const DataSources& sources, const DatasetFactory& factory) {
  std::array<std::shared_ptr<const Dataset>, 3> built;
  for (size_t split = 0; split < 3; ++split) {
    constexpr int64_t kEpoch = 100000;
    const int64_t samples = sources.samples[split].value_or(kEpoch);
    if (samples > 0) built[split] = factory.make_mock(split, samples);
  }
  return {built[0], built[1], built[2]};
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

std::vector<Problem> source_problems(const DataSources& sources) {
  std::vector<Problem> problems;
  const bool per_split = std::any_of(sources.split_data_path.begin(), sources.split_data_path.end(),
                                     [](const auto& paths) { return !paths.empty(); });
  const int count = (sources.mock_data ? 1 : 0) + (sources.data_path.empty() ? 0 : 1) + (per_split ? 1 : 0);
  if (count != 1) {
    problems.push_back(
        {.what = count == 0 ? "no data given" : "data given by more than one source",
         .where = "--data-path",
         .fix = "Use one of --data-path, --train-data-path (and valid, test) and --mock-data"});
  }
  for (size_t split = 0; split < 3; ++split) {
    if (sources.samples[split].value_or(0) < 0) {
      problems.push_back(
          {.what = fmt::format("{} {} samples are requested", *sources.samples[split], kSplitNames[split]),
           .fix = "Request 0 or more"});
    }
  }
  return problems;
}

Datasets build_datasets(const DataSources& sources, const DatasetFactory& factory) {
  if (sources.mock_data) return build_mock(sources, factory);
  std::array<std::shared_ptr<const Dataset>, 3> built;
  SplitBuilder builder(sources, factory);
  if (!sources.data_path.empty()) {
    const Blend blend = parse_data_path(sources.data_path);
    check_weights(blend);
    const auto shares = parse_split(sources.split);
    for (size_t split = 0; split < 3; ++split) {
      built[split] = builder.build(blend, split, [&](const IndexedDataset& data) {
        return split_ranges(shares, units(data, factory.unit))[split];
      });
    }
    return {built[0], built[1], built[2]};
  }
  for (size_t split = 0; split < 3; ++split) {
    if (sources.split_data_path[split].empty()) continue;
    Blend blend = parse_data_path(sources.split_data_path[split]);
    check_weights(blend);
    if (blend.prefixes.size() == 1)
      blend.weights.reset();  // as in Megatron-LM, one prefix per split is never a blend
    built[split] =
        builder.build(blend, split, [&](const IndexedDataset& data) -> std::optional<SequenceRange> {
          return SequenceRange{0, units(data, factory.unit)};
        });
  }
  return {built[0], built[1], built[2]};
}

}  // namespace teratron
