#include "teratron/models/bert/data/bert_builder.h"

#include <limits>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/models/bert/data/bert_dataset.h"

namespace teratron {

void check_bert_data(const BertDataOptions& options) {
  std::vector<Problem> problems = source_problems(options.sources);
  const MaskedDatasetOptions& samples = options.samples;
  std::vector<std::string_view> missing;
  const std::pair<std::string_view, int64_t> special[] = {{"[CLS]", samples.cls_id},
                                                          {"[SEP]", samples.sep_id},
                                                          {"[MASK]", samples.mask_id},
                                                          {"[PAD]", samples.pad_id}};
  for (const auto& [name, id] : special) {
    if (id < 0) missing.push_back(name);
  }
  if (!options.sources.mock_data && !missing.empty())
    problems.push_back(
        {.what = fmt::format("the tokenizer {} has no {}", options.tokenizer, fmt::join(missing, ", ")),
         .where = "--tokenizer-type",
         .fix = "Use BertWordPieceLowerCase or BertWordPieceCase with BERT's vocabulary"});
  if (options.sources.mock_data && samples.vocab_size < 8)
    problems.push_back({.what = fmt::format("mock data needs 8 or more tokens, not {}", samples.vocab_size),
                        .where = "--vocab-size",
                        .fix = "Set the number of token ids, for example 30522"});
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

namespace {

SampleMappingOptions mapping_options(const BertDataOptions& options, std::optional<int64_t> samples) {
  const MaskedDatasetOptions& own = options.samples;
  SampleMappingOptions mapping{.max_length = own.sequence_length - bert_special_tokens,
                               .short_sequence_probability = options.short_sequence_probability,
                               .seed = own.seed,
                               .min_sentences = own.classification_head ? 2 : 1};
  if (!samples) mapping.max_epochs = 1;
  mapping.max_samples = samples.value_or(std::numeric_limits<int64_t>::max());
  return mapping;
}

}  // namespace

Datasets build_bert_datasets(const BertDataOptions& options) {
  check_bert_data(options);
  const auto make = [&options](const DatasetPart& part) -> std::shared_ptr<const Dataset> {
    IndexArray mapping =
        cached_sample_mapping(*part.data, part.range, mapping_options(options, part.samples), options.cache);
    return std::make_shared<BertSamples>(BertDataset(part.data, std::move(mapping), options.samples));
  };
  const auto make_mock = [&options](size_t split, int64_t samples) -> std::shared_ptr<const Dataset> {
    MaskedDatasetOptions own = options.samples;
    own.seed += static_cast<uint32_t>(split);
    return std::make_shared<MockBertDataset>(samples, own);
  };
  return build_datasets(
      options.sources,
      {.unit = SplitUnit::documents, .make = make, .make_mock = make_mock, .cache = options.cache});
}

}  // namespace teratron
