#include "teratron/models/masked_data/sample_mapping.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/data/indexed/indexed_dataset.h"

namespace teratron {

namespace {

constexpr int32_t kLongSentence = 512;
constexpr int64_t columns = 3;

template <typename T>
class MappingBuilder {
 public:
  explicit MappingBuilder(const SampleMappingOptions& options)
      : options_(options),
        short_ratio_(options.short_sequence_probability > 0
                         ? std::llround(1.0 / options.short_sequence_probability)
                         : 0),
        random_(options.seed) {}

  /// `lengths`: of the sentences of one document, which starts at sentence `first`.
  void add_document(int64_t first, std::span<const int32_t> lengths) {
    const auto count = static_cast<int64_t>(lengths.size());
    const bool has_long = count > 1 && std::any_of(lengths.begin(), lengths.end(),
                                                   [](int32_t length) { return length > kLongSentence; });
    if (count < options_.min_sentences || has_long) return;
    int64_t target = draw_target();
    int64_t start = 0;
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; ++i) {
      tokens += lengths[static_cast<size_t>(i)];
      const int64_t left = count - i - 1;
      const bool full = tokens >= target && left > 1 && i + 1 - start >= options_.min_sentences;
      if (!full && left > 0) continue;
      for (const int64_t value : {first + start, first + i + 1, target})
        values_.push_back(static_cast<T>(value));
      target = draw_target();
      start = i + 1;
      tokens = 0;
    }
  }

  int64_t size() const { return static_cast<int64_t>(values_.size()) / columns; }

  IndexArray shuffled() {
    std::mt19937_64 random(uint64_t{options_.seed} + 1);
    for (size_t i = values_.size() / columns; i-- > 1;) {
      const auto row = values_.begin() + static_cast<int64_t>(i) * columns;
      std::swap_ranges(row, row + columns,
                       values_.begin() + static_cast<int64_t>(random() % (i + 1)) * columns);
    }
    return IndexArray(std::move(values_), columns);
  }

 private:
  int64_t draw_target() {
    if (short_ratio_ == 0) return options_.max_length;
    const auto draw = static_cast<int64_t>(random_());
    return draw % short_ratio_ == 0 ? 2 + draw % (options_.max_length - 1) : options_.max_length;
  }

  SampleMappingOptions options_;
  int64_t short_ratio_;
  std::mt19937 random_;
  std::vector<T> values_;
};

template <typename T>
IndexArray build(const IndexedDataset& dataset, std::span<const int64_t> starts,
                 const SampleMappingOptions& options, IndexProgress* progress) {
  const auto lengths = dataset.lengths(starts.front(), starts.back() - starts.front());
  MappingBuilder<T> builder(options);
  for (int64_t epoch = 0; epoch < options.max_epochs && builder.size() < options.max_samples; ++epoch) {
    const int64_t before = builder.size();
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      if (progress && i % (size_t{1} << 20) == 0)
        progress->set("samples", builder.size(), std::max(builder.size(), options.max_samples));
      const auto offset = static_cast<size_t>(starts[i] - starts.front());
      builder.add_document(
          starts[i], std::span(lengths).subspan(offset, static_cast<size_t>(starts[i + 1] - starts[i])));
    }
    if (builder.size() > before) continue;
    throw data_error(
        {.what = fmt::format(
             "each of the {} documents has fewer than {} sentences, or one of more than {} tokens",
             starts.size() - 1, options.min_sentences, kLongSentence),
         .fix = "Preprocess the text with --split-sentences"});
  }
  return builder.shuffled();
}

}  // namespace

SampleMappingRow row_at(const IndexArray& mapping, int64_t i) {
  return {mapping.at(i, 0), mapping.at(i, 1), mapping.at(i, 2)};
}

IndexArray build_sample_mapping(const IndexedDataset& dataset, SequenceRange documents,
                                const SampleMappingOptions& options, IndexProgress* progress) {
  TERATRON_ASSERT(documents.first >= 0 && documents.last <= dataset.documents() && options.max_length > 1);
  const auto starts = dataset.document_starts(documents.first, documents.size() + 1);
  const bool is_wide = starts.back() > std::numeric_limits<uint32_t>::max();
  return is_wide ? build<int64_t>(dataset, starts, options, progress)
                 : build<uint32_t>(dataset, starts, options, progress);
}

IndexArray cached_sample_mapping(const IndexedDataset& dataset, SequenceRange documents,
                                 const SampleMappingOptions& options, const IndexCache& cache) {
  const IndexCacheKey key{.kind = "sentences",
                          .description = {{"first_document", documents.first},
                                          {"last_document", documents.last},
                                          {"max_epochs", options.max_epochs},
                                          {"max_samples", options.max_samples},
                                          {"max_length", options.max_length},
                                          {"short_sequence_probability", options.short_sequence_probability},
                                          {"seed", options.seed},
                                          {"min_sentences", options.min_sentences}},
                          .arrays = {"sample_index"}};
  return cached_index(
             index_source(dataset), key, cache,
             [&](IndexProgress& progress) {
               return CachedIndex{.arrays = {build_sample_mapping(dataset, documents, options, &progress)}};
             })
      .arrays.front();
}

}  // namespace teratron
