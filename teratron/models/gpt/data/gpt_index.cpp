#include "teratron/models/gpt/data/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/numpy_random.h"

namespace teratron {

namespace {

/// Sizes of the index and of the ranges that are shuffled separately.
struct IndexSizes {
  int64_t epochs = 1;
  int64_t samples = 0;
  std::optional<int64_t> before_last_epoch;  // samples before a last epoch that is shuffled separately
};

IndexSizes index_sizes(int64_t tokens_per_epoch, const GPTIndexOptions& options) {
  const int64_t extra = options.add_extra_token ? 1 : 0;
  const int64_t length = options.sequence_length;
  IndexSizes sizes;
  if (options.samples) {
    const auto needed = static_cast<__int128>(*options.samples) * length + extra;
    if (needed > std::numeric_limits<int64_t>::max() / 2) {
      throw config_error({.what = fmt::format("{} samples of {} tokens exceed the range of 64-bit counters",
                                              *options.samples, length),
                          .fix = "Request fewer or shorter samples"});
    }
    const auto epochs = (needed + tokens_per_epoch - 1) / tokens_per_epoch;
    sizes.epochs = static_cast<int64_t>(std::max<__int128>(epochs, 1));
  }
  const int64_t tokens = sizes.epochs * tokens_per_epoch - extra;
  sizes.samples = tokens / length;
  if (!options.drop_last) {
    const auto rounded = std::ceil(static_cast<float>(tokens) / static_cast<float>(length));
    sizes.samples = std::min(static_cast<int64_t>(rounded), (tokens + length - 1) / length);
  }
  if (sizes.epochs > 1) {
    const int64_t before = ((sizes.epochs - 1) * tokens_per_epoch - extra) / length;
    const int64_t from_last = *options.samples - before;
    const int64_t per_epoch = (tokens_per_epoch - extra) / length;
    if (from_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch)))
      sizes.before_last_epoch = before;
  }
  return sizes;
}

/// Reports the progress of shuffles of `total` values.
std::function<void(size_t)> shuffle_report(IndexProgress* progress, const char* step, size_t total) {
  return [=](size_t left) {
    if (progress) progress->set(step, static_cast<int64_t>(total - left), static_cast<int64_t>(total));
  };
}

std::vector<int32_t> build_document_index(SequenceRange range, const IndexSizes& sizes, NumpyRandom& random,
                                          IndexProgress* progress) {
  const auto count = static_cast<size_t>(range.size());
  std::vector<int32_t> index(count * static_cast<size_t>(sizes.epochs));
  for (size_t i = 0; i < index.size(); ++i)
    index[i] = static_cast<int32_t>(range.first + static_cast<int64_t>(i % count));
  const auto report = shuffle_report(progress, "document index", index.size());
  if (sizes.before_last_epoch) {
    random.shuffle(std::span(index).first(index.size() - count), report);
    random.shuffle(std::span(index).last(count), report);
  } else {
    random.shuffle(std::span(index), report);
  }
  return index;
}

/// Flat rows (position, offset). T must be wide enough for positions and offsets.
template <typename T>
std::vector<T> sample_index_rows(const DocumentOrder& order, const GPTIndexOptions& options, int64_t samples,
                                 IndexProgress* progress) {
  const int64_t extra = options.add_extra_token ? 1 : 0;
  std::vector<T> index;
  index.reserve(2 * static_cast<size_t>(samples + 1));
  size_t position = 0;
  int64_t offset = 0;
  index.insert(index.end(), {T{0}, T{0}});
  for (int64_t sample = 0; sample < samples; ++sample) {
    if (progress && sample % (1 << 20) == 0) progress->set("sample index", sample, samples);
    int64_t needed = options.sequence_length + extra;
    while (true) {
      if (position + 8 < order.documents.size()) {
        __builtin_prefetch(
            &order.lengths[static_cast<size_t>(order.documents[position + 8] - order.first_sequence)]);
      }
      const int64_t available = order.length_at(position) - offset;
      if (available >= needed) {
        offset += needed - extra;
        break;
      }
      if (position + 1 == order.documents.size()) {  // the short last sample
        TERATRON_ASSERT(sample + 1 == samples, "sample {} of {}", sample, samples);
        offset = order.length_at(position) - extra;
        break;
      }
      needed -= available;
      ++position;
      offset = 0;
    }
    index.push_back(static_cast<T>(position));
    index.push_back(static_cast<T>(offset));
  }
  return index;
}

template <typename T>
std::vector<T> build_shuffle_index(const IndexSizes& sizes, NumpyRandom& random, IndexProgress* progress) {
  std::vector<T> index(static_cast<size_t>(sizes.samples));
  std::iota(index.begin(), index.end(), T{0});
  const auto first = static_cast<size_t>(sizes.before_last_epoch.value_or(sizes.samples));
  const auto report = shuffle_report(progress, "shuffle index", index.size());
  random.shuffle(std::span(index).first(first), report);
  random.shuffle(std::span(index).subspan(first), report);
  return index;
}

}  // namespace

IndexArray build_sample_index(const DocumentOrder& order, const GPTIndexOptions& options, int64_t samples,
                              IndexProgress* progress) {
  const bool is_wide = order.documents.size() > std::numeric_limits<int32_t>::max();
  return is_wide ? IndexArray(sample_index_rows<int64_t>(order, options, samples, progress), 2)
                 : IndexArray(sample_index_rows<int32_t>(order, options, samples, progress), 2);
}

GPTIndex build_gpt_index(SequenceRange range, std::span<const int32_t> lengths,
                         const GPTIndexOptions& options, IndexProgress* progress) {
  TERATRON_ASSERT(static_cast<int64_t>(lengths.size()) == range.size() && options.sequence_length > 0);
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  if (range.last > kMaxInt32) {
    throw data_error({.what = fmt::format("{} sequences exceed the 32-bit document index", range.last),
                      .fix = "Split the data into several prefixes and blend them"});
  }
  GPTIndex index;
  for (const int32_t length : lengths) index.tokens_per_epoch += length;
  const int64_t extra = options.add_extra_token ? 1 : 0;
  if (index.tokens_per_epoch <= extra) {
    throw data_error({.what = fmt::format("{} sequences with {} tokens are not enough for a sample",
                                          range.size(), index.tokens_per_epoch),
                      .fix = "Add data or change --split"});
  }
  const IndexSizes sizes = index_sizes(index.tokens_per_epoch, options);
  index.epochs = sizes.epochs;
  NumpyRandom random(options.seed);
  if (progress) progress->set("document index", 0, 1);
  auto documents = build_document_index(range, sizes, random, progress);
  index.sample_index =
      build_sample_index({documents, lengths, range.first}, options, sizes.samples, progress);
  if (progress) progress->set("shuffle index", 0, 1);
  index.document_index = IndexArray(std::move(documents));
  if (sizes.samples >= int64_t{std::numeric_limits<uint32_t>::max()} - 1) {
    index.shuffle_index = IndexArray(build_shuffle_index<int64_t>(sizes, random, progress));
  } else {
    index.shuffle_index = IndexArray(build_shuffle_index<uint32_t>(sizes, random, progress));
  }
  return index;
}

}  // namespace teratron
