#include "teratron/models/t5/data/t5_builder.h"

#include <limits>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/models/t5/data/t5_dataset.h"

namespace teratron {

namespace {

// The begin and the end of the encoder's tokens have room, as in Megatron-LM, which adds neither.
constexpr int64_t t5_special_tokens = 2;

void check_t5_tokens(const T5DataOptions& options, std::vector<Problem>& problems) {
  const MaskedDatasetOptions& samples = options.samples;
  std::vector<std::string_view> missing;
  const std::pair<std::string_view, int64_t> special[] = {
      {"padding", samples.pad_id}, {"begin", samples.bos_id}, {"end", samples.eos_id}};
  for (const auto& [name, id] : special) {
    if (id < 0) missing.push_back(name);
  }
  if (!missing.empty()) {
    problems.push_back(
        {.what = fmt::format("the tokenizer {} has no {} token", options.tokenizer, fmt::join(missing, ", ")),
         .where = "--tokenizer-type",
         .fix = "Use BertWordPieceLowerCase or BertWordPieceCase, for example"});
  }
  if (samples.sentinel_ids.empty()) {
    problems.push_back({.what = fmt::format("the tokenizer {} has no sentinel tokens", options.tokenizer),
                        .where = "--vocab-extra-ids",
                        .fix = "Add --vocab-extra-ids 100"});
  }
}

void check_t5(const T5DataOptions& options) {
  std::vector<Problem> problems = source_problems(options.sources);
  if (options.samples.sequence_length < t5_special_tokens + 2) {
    problems.push_back(
        {.what = fmt::format("an encoder of {} tokens has no room for text", options.samples.sequence_length),
         .where = "--encoder-seq-length",
         .fix = "Use 4 or more"});
  }
  if (options.sources.mock_data) {
    if (options.samples.vocab_size < mock_t5_least_vocabulary) {
      problems.push_back({.what = fmt::format("mock data needs {} or more tokens, not {}",
                                              mock_t5_least_vocabulary, options.samples.vocab_size),
                          .where = "--vocab-size",
                          .fix = "Set the number of token ids, for example 30522"});
    }
  } else {
    check_t5_tokens(options, problems);
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

Datasets build_t5_datasets(const T5DataOptions& options) {
  check_t5(options);
  const auto make = [&options](const DatasetPart& part) -> std::shared_ptr<const Dataset> {
    const MaskedDatasetOptions& own = options.samples;
    SampleMappingOptions mapping{.max_length = own.sequence_length - t5_special_tokens,
                                 .short_sequence_probability = options.short_sequence_probability,
                                 .seed = own.seed,
                                 .min_sentences = 1};
    if (!part.samples) mapping.max_epochs = 1;
    mapping.max_samples = part.samples.value_or(std::numeric_limits<int64_t>::max());
    IndexArray rows = cached_sample_mapping(*part.data, part.range, mapping, options.cache);
    return std::make_shared<T5Samples>(part.data, std::move(rows), own);
  };
  const auto make_mock = [&options](size_t split, int64_t samples) -> std::shared_ptr<const Dataset> {
    MaskedDatasetOptions own = options.samples;
    own.seed += static_cast<uint32_t>(split);
    return std::make_shared<MockT5Dataset>(samples, own);
  };
  return build_datasets(
      options.sources,
      {.unit = SplitUnit::documents, .make = make, .make_mock = make_mock, .cache = options.cache});
}

}  // namespace teratron
