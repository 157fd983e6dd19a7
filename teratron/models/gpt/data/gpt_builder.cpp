#include "teratron/models/gpt/data/gpt_builder.h"

#include "teratron/models/gpt/data/mock_gpt_dataset.h"

namespace teratron {

namespace {

void check(const GPTDataOptions& options) {
  std::vector<Problem> problems = source_problems(options.sources);
  if (options.sequence_length < 1) {
    problems.push_back({.what = fmt::format("{} is not a positive number", options.sequence_length),
                        .where = "--seq-length",
                        .fix = "Set the tokens per sample, for example 1024"});
  }
  if (options.sources.mock_data && options.masks.vocab_size < 2) {
    problems.push_back({.what = "mock data needs a vocabulary size",
                        .where = "--vocab-size",
                        .fix = "Set the number of token ids, for example 50257"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

Datasets build_gpt_datasets(const GPTDataOptions& options) {
  check(options);
  const auto make = [&options](const DatasetPart& part) -> std::shared_ptr<const Dataset> {
    const GPTIndexOptions index{.sequence_length = options.sequence_length,
                                .seed = options.seed,
                                .samples = part.samples,
                                .add_extra_token = options.add_extra_token,
                                .drop_last = part.split != 1 || options.drop_last_partial_validation};
    return std::make_shared<GPTDataset>(
        part.data, cached_gpt_index(*part.data, part.range, index, options.cache), index, options.masks);
  };
  const auto make_mock = [&options](size_t split, int64_t samples) -> std::shared_ptr<const Dataset> {
    return std::make_shared<MockGPTDataset>(
        MockGPTDataset::Options{.samples = samples,
                                .sequence_length = options.sequence_length,
                                .vocab_size = options.masks.vocab_size,
                                .seed = options.seed + split});
  };
  return build_datasets(options.sources, {.make = make, .make_mock = make_mock, .cache = options.cache});
}

}  // namespace teratron
