#include "teratron/data/indexed/index_cache.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/gpt/data/gpt_index.h"

namespace teratron {

GPTIndex cached_gpt_index(const IndexedDataset& dataset, SequenceRange range, const GPTIndexOptions& options,
                          const IndexCache& cache) {
  IndexCacheKey key{.kind = "gpt",
                    .description = {{"first_sequence", range.first},
                                    {"last_sequence", range.last},
                                    {"sequence_length", options.sequence_length},
                                    {"seed", options.seed},
                                    {"add_extra_token", options.add_extra_token},
                                    {"drop_last", options.drop_last}},
                    .arrays = {"document_index", "sample_index", "shuffle_index"}};
  if (options.samples) key.description["samples"] = *options.samples;
  const CachedIndex index = cached_index(index_source(dataset), key, cache, [&](IndexProgress& progress) {
    const GPTIndex built =
        build_gpt_index(range, dataset.lengths(range.first, range.size()), options, &progress);
    return CachedIndex{.numbers = {{"tokens_per_epoch", built.tokens_per_epoch}, {"epochs", built.epochs}},
                       .arrays = {built.document_index, built.sample_index, built.shuffle_index}};
  });
  return {.tokens_per_epoch = index.numbers.at("tokens_per_epoch"),
          .epochs = index.numbers.at("epochs"),
          .document_index = index.arrays[0],
          .sample_index = index.arrays[1],
          .shuffle_index = index.arrays[2]};
}

}  // namespace teratron
