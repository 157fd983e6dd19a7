#include "teratron/models/gpt/data/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/numpy_random.h"

namespace teratron {

namespace {

UserError bad_split(std::string_view split, std::string what) {
  return config_error({.what = fmt::format("\"{}\" {}", printable(split), what),
                       .where = "--split",
                       .fix = "Give up to three shares, e.g. 969,30,1"});
}

/// How many samples there are and how they are shuffled.
struct Plan {
  int64_t epochs = 1;
  int64_t samples = 0;
  std::optional<int64_t> before_last_epoch;  // set: the last epoch is shuffled apart; samples before it
};

Plan make_plan(int64_t tokens_per_epoch, const GPTIndexOptions& options) {
  const int64_t extra = options.add_extra_token ? 1 : 0;
  const int64_t length = options.sequence_length;
  Plan plan;
  if (options.samples) {
    const auto wanted = static_cast<__int128>(*options.samples) * length + extra;
    if (wanted > std::numeric_limits<int64_t>::max() / 2) {
      throw config_error({.what = fmt::format("{} samples of {} tokens are more than can be counted",
                                              *options.samples, length),
                          .fix = "Ask for fewer or shorter samples"});
    }
    const auto epochs = (wanted + tokens_per_epoch - 1) / tokens_per_epoch;
    plan.epochs = static_cast<int64_t>(std::max<__int128>(epochs, 1));
  }
  const int64_t tokens = plan.epochs * tokens_per_epoch - extra;
  plan.samples = tokens / length;
  if (!options.drop_last) {
    const auto rounded = std::ceil(static_cast<float>(tokens) / static_cast<float>(length));
    plan.samples = std::min(static_cast<int64_t>(rounded), (tokens + length - 1) / length);
  }
  if (plan.epochs > 1) {
    const int64_t before = ((plan.epochs - 1) * tokens_per_epoch - extra) / length;
    const int64_t from_last = *options.samples - before;
    const int64_t per_epoch = (tokens_per_epoch - extra) / length;
    if (from_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch)))
      plan.before_last_epoch = before;
  }
  return plan;
}

std::vector<int32_t> build_document_index(SequenceRange range, const Plan& plan, NumpyRandom& random) {
  const auto count = static_cast<size_t>(range.size());
  std::vector<int32_t> index(count * static_cast<size_t>(plan.epochs));
  for (size_t i = 0; i < index.size(); ++i)
    index[i] = static_cast<int32_t>(range.first + static_cast<int64_t>(i % count));
  if (plan.before_last_epoch) {
    random.shuffle(std::span(index).first(index.size() - count));
    random.shuffle(std::span(index).last(count));
  } else {
    random.shuffle(std::span(index));
  }
  return index;
}

/// Walks over the documents sample by sample. T is wide enough for positions and offsets.
template <typename T>
std::vector<T> walk_over(const DocumentRow& row, const GPTIndexOptions& options, int64_t samples) {
  const int64_t extra = options.add_extra_token ? 1 : 0;
  std::vector<T> index;
  index.reserve(2 * static_cast<size_t>(samples + 1));
  size_t position = 0;
  int64_t offset = 0;
  index.insert(index.end(), {T{0}, T{0}});
  for (int64_t sample = 0; sample < samples; ++sample) {
    int64_t needed = options.sequence_length + extra;
    while (true) {
      if (position + 8 < row.documents.size()) {
        __builtin_prefetch(
            &row.lengths[static_cast<size_t>(row.documents[position + 8] - row.first_sequence)]);
      }
      const int64_t available = row.length_at(position) - offset;
      if (available >= needed) {
        offset += needed - extra;
        break;
      }
      if (position + 1 == row.documents.size()) {  // the short last sample
        TERATRON_ASSERT(sample + 1 == samples, "sample {} of {}", sample, samples);
        offset = row.length_at(position) - extra;
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
std::vector<T> build_shuffle_index(const Plan& plan, NumpyRandom& random) {
  std::vector<T> index(static_cast<size_t>(plan.samples));
  std::iota(index.begin(), index.end(), T{0});
  const auto first = static_cast<size_t>(plan.before_last_epoch.value_or(plan.samples));
  random.shuffle(std::span(index).first(first));
  random.shuffle(std::span(index).subspan(first));
  return index;
}

}  // namespace

std::array<double, 3> parse_split(std::string_view split) {
  std::array<double, 3> shares = {};
  size_t count = 0;
  constexpr std::string_view kNumber = ".0123456789";
  for (size_t start = split.find_first_of(kNumber); start != std::string_view::npos;) {
    const size_t end = std::min(split.find_first_not_of(kNumber, start), split.size());
    const std::string text(split.substr(start, end - start));
    char* parsed = nullptr;
    const double value = std::strtod(text.c_str(), &parsed);
    if (parsed != text.c_str() + text.size()) throw bad_split(split, "holds the wrong number " + text);
    if (count == shares.size()) throw bad_split(split, "has more than three shares");
    shares[count++] = value;
    start = split.find_first_of(kNumber, end);
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (!(sum > 0) || !std::isfinite(sum)) throw bad_split(split, "has no share above zero");
  for (double& share : shares) share /= sum;
  return shares;
}

std::array<std::optional<SequenceRange>, 3> split_ranges(const std::array<double, 3>& shares,
                                                         int64_t sequences) {
  std::array<std::optional<SequenceRange>, 3> ranges;
  double fraction = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double start = fraction;
    fraction += shares[i];
    if (shares[i] == 0) continue;
    const auto bound = [&](double value) {
      return std::min(static_cast<int64_t>(std::nearbyint(value * static_cast<double>(sequences))),
                      sequences);
    };
    ranges[i] = SequenceRange{bound(start), bound(fraction)};
  }
  return ranges;
}

IndexArray build_sample_index(const DocumentRow& row, const GPTIndexOptions& options, int64_t samples) {
  const bool is_wide = row.documents.size() > std::numeric_limits<int32_t>::max();
  return is_wide ? IndexArray(walk_over<int64_t>(row, options, samples), 2)
                 : IndexArray(walk_over<int32_t>(row, options, samples), 2);
}

GPTIndex build_gpt_index(SequenceRange range, std::span<const int32_t> lengths,
                         const GPTIndexOptions& options) {
  TERATRON_ASSERT(static_cast<int64_t>(lengths.size()) == range.size() && options.sequence_length > 0);
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  if (range.last > kMaxInt32) {
    throw data_error(
        {.what = fmt::format("{} sequences are more than Megatron-LM's index can address", range.last),
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
  const Plan plan = make_plan(index.tokens_per_epoch, options);
  index.epochs = plan.epochs;
  NumpyRandom random(options.seed);
  auto documents = build_document_index(range, plan, random);
  index.sample_index = build_sample_index({documents, lengths, range.first}, options, plan.samples);
  index.document_index = IndexArray(std::move(documents));
  if (plan.samples >= int64_t{std::numeric_limits<uint32_t>::max()} - 1) {
    index.shuffle_index = IndexArray(build_shuffle_index<int64_t>(plan, random));
  } else {
    index.shuffle_index = IndexArray(build_shuffle_index<uint32_t>(plan, random));
  }
  return index;
}

}  // namespace teratron
